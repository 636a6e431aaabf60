"""What a cluster is asked to do: traces, sessions and turns, KV bytes, prefill times, and the serving model."""
