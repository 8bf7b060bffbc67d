"""The values of the pacing protocol: records, commands, and how texts of users are read."""
