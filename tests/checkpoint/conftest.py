"""Eight CPU devices for JAX, as the framework's own tests have them; and the fake S3 of the locations' tests."""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
sys.path.insert(0, str(Path(__file__).parent.parent / "locations"))
