"""What T5X needs from us: gin files, tasks, and later layers."""

from __future__ import annotations
