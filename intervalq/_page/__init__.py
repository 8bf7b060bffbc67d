"""Pages in HTML with charts, which load nothing: of reports, audits and pipelines."""
