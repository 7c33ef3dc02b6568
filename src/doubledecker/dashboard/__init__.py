"""The dashboard: pages about the bus, rendered whole on the server; the web process serves them."""
