"""What light allows: the loss of a path through the switch against what a module stands, and how far ports reach.

Losses and powers in dB and dBm. Source of the path's figures and of the limits: beyond.md of the design, "Link budget".
"""

from __future__ import annotations

from dataclasses import dataclass


class OpticsError(ValueError):
    """A link that loses more light than its modules stand, or more GPUs than the ports reach. Says what would do."""


@dataclass(frozen=True, slots=True)
class OpticalPath:
    """One pass through the switch, module to module: 2.7 + 4 · 0.75 + 0.25 = 5.95 dB unless said otherwise.

    A splice in place of a connector moves one from ``connectors`` to ``splices``.
    """

    switch_dB: float = 2.7
    connectors: int = 4
    connector_dB: float = 0.75
    splices: int = 0
    splice_dB: float = 0.1
    fibre_dB: float = 0.25

    def __post_init__(self) -> None:
        for name in ("switch_dB", "connectors", "connector_dB", "splices", "splice_dB", "fibre_dB"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OpticsError(f"optical path: {name} is {getattr(self, name)}; a loss is zero or more")

    @property
    def loss_dB(self) -> float:
        lumped = self.connectors * self.connector_dB + self.splices * self.splice_dB
        return self.switch_dB + lumped + self.fibre_dB


@dataclass(frozen=True, slots=True)
class Module:
    """An optical module. ``allocation_dB`` is the channel loss its standard allows.

    ``launch_dBm`` is its highest launch power (outer OMA, a lane), ``sensitivity_dBm`` the receiver's sensitivity less the
    transmitter's TDECQ: a receiver needs TDECQ + ``sensitivity_dBm``. ``ports`` is how many switch ports a module takes
    (a parallel one sends each lane down a fibre of its own).
    """

    name: str
    allocation_dB: float
    launch_dBm: float
    sensitivity_dBm: float
    ports: int


DR4 = Module("DR4", allocation_dB=3.0, launch_dBm=4.2, sensitivity_dBm=-5.3, ports=4)
"""400GBASE-DR4, IEEE 802.3 clause 124."""

FR4 = Module("FR4", allocation_dB=4.0, launch_dBm=3.7, sensitivity_dBm=-6.0, ports=1)
"""400G-FR4 (four wavelengths on one fibre), 100G Lambda MSA."""


def highest_tdecq_dB(path: OpticalPath, module: Module, margin_dB: float = 2.0) -> float:
    """The worst transmitter (TDECQ) that still closes the link at the highest launch power, with ``margin_dB`` to spare.

    launch − loss − margin ≥ TDECQ + sensitivity. Over the default path 1.55 dB (DR4) and 1.75 dB (FR4).
    """
    return module.launch_dBm - module.sensitivity_dBm - path.loss_dB - margin_dB


def check_link(path: OpticalPath, module: Module, *, tdecq_dB: float | None = None, margin_dB: float = 2.0) -> None:
    """Raise OpticsError where a link is over its budget.

    Any compliant module stands a loss within its allocation. Above that the transmitters must be selected: ``tdecq_dB``
    says their worst, run at the highest launch power.
    """
    if path.loss_dB <= module.allocation_dB:
        return
    limit_dB = highest_tdecq_dB(path, module, margin_dB)
    over = f"{path.loss_dB:.2f} dB through the switch, {module.name} allows {module.allocation_dB:.2f} dB"
    if limit_dB < 0:
        raise OpticsError(f"link budget: {over}, and no transmitter closes it with {margin_dB:g} dB to spare; splice fibres")
    if tdecq_dB is None:
        raise OpticsError(f"link budget: {over}; splice fibres, or use transmitters with a TDECQ of at most {limit_dB:.2f} dB")
    if not 0 <= tdecq_dB <= limit_dB:
        raise OpticsError(f"link budget: {over}, which takes a TDECQ of at most {limit_dB:.2f} dB; {tdecq_dB:g} dB is given")


def reach_gpus(switch_ports: int, planes: int, module: Module = FR4) -> int:
    """GPUs that one stage of switches joins: one plane for each GPU position of a node, one node a (group of) ports.

    Eight planes of 384 ports reach 3,072 GPUs. The ports serve any line rate.
    """
    return switch_ports // module.ports * planes


def check_ports(instances: int, switch_ports: int, module: Module = FR4) -> None:
    """Raise OpticsError where a plane of ``switch_ports`` ports cannot join one GPU of each of ``instances`` instances."""
    needed = instances * module.ports
    if needed > switch_ports:
        raise OpticsError(
            f"a plane of {switch_ports} ports cannot join {instances} instances over {module.name}: {needed} needed"
        )
