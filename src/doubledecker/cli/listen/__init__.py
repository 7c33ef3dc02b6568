"""`doubledecker listen`: webhooks on a laptop, over a stream that the laptop opens."""
