"""Where settings become objects: the only place that builds connections, clients and processes."""
