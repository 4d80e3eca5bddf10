"""Data-centre fabrics: their descriptions (`topo.fabric`) and their emulation (`topo.emulation`)."""
