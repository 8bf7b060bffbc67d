"""How an audit is shown: as text on a terminal, and as an HTML page with plots."""
