"""The values of the pacing protocol: records, commands, and the parsing of users' texts."""
