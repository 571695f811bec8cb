"""``vitshap bench``: its subcommands, and measurements of speed, memory and estimators."""
