"""kvfabric: a packet-level testbed for the network of disaggregated LLM serving.

Importing the package imports nothing else; scenarios are in ``kvfabric.scenario``, the command line in ``kvfabric.cli``.
"""

__version__ = "0.1.0"
