"""Sources: rows of tables, files and streams become events on the bus."""
