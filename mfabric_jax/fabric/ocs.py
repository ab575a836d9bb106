"""Optical circuit switches one can buy or read about: ports bound a region, the delay is what a reconfiguration costs.

Source: arXiv 2501.03905, table of OCS technologies; where it gives a range, both ends.
"""

from dataclasses import dataclass

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.units import ms, us


@dataclass(frozen=True)
class Ocs:
    """`ports` of one switch; `delay_s`: fastest and slowest reconfiguration, None where nobody reports it."""

    name: str
    technology: str
    ports: int
    delay_s: tuple[float, float] | None

    def check_region(self, servers: int, degree: int) -> None:
        """A region needs a port for every optical NIC."""
        if servers * degree > self.ports:
            raise InputError(
                f"ocs {self.name!r} has {self.ports} ports, but a region of {servers} servers with optical_degree "
                f"{degree} needs {servers * degree}; choose a larger switch or a smaller degree."
            )


OCS = {
    one.name: one
    for one in (
        Ocs("telescent", "robotic patch panel", 1008, (60.0, 600.0)),  # "minutes": the range is ours
        Ocs("polatis", "piezo beam steering", 576, (ms(10), ms(25))),
        Ocs("calient", "3D MEMS", 320, (ms(10), ms(15))),
        Ocs("palomar", "2D MEMS", 136, None),
        Ocs("rotornet", "selector switch", 128, (us(10), us(10))),
        Ocs("lightmatter", "silicon photonics", 32, (us(7), us(7))),
        Ocs("epiphotonics", "PLZT", 16, (us(0.01), us(0.01))),
    )
}


def get_ocs(name: str) -> Ocs:
    """The switch of that name; `InputError` for an unknown one."""
    return OCS[one_of("ocs", name, OCS)]
