"""What a cluster and a fabric are, how they shrink to a testbed, and how they are built in network namespaces."""
