"""Rules for the record of a key under a common rate, beside those of any record."""
