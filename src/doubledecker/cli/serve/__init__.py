"""The processes of a bus, `web`, `worker` and `watch`, and what keeps several of them running."""
