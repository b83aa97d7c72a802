"""What everything that writes results shares: folders, the environment they were made in, the look, tables, pages."""
