"""The sealed sandbox every emulation runs in: namespaces that vanish with the process, however it ends.

See docs/sandbox.md for the processes, the signals and the limits.
"""

from kvfabric.sandbox._errors import SandboxError
from kvfabric.sandbox._inside import inside, prepare_inside
from kvfabric.sandbox._outer import run_sealed
from kvfabric.sandbox._stop import StopSignals

__all__ = ["SandboxError", "StopSignals", "inside", "prepare_inside", "run_sealed"]
