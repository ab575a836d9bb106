"""Task graphs: read and write them, expand their collectives, and lower them to flows."""

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks as read_tasks
from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks as read_with_remarks
from mfabric_jax.apps.graphs.tasks.formats.registry import write_tasks as write_tasks
from mfabric_jax.apps.graphs.tasks.graph import Op as Op
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph as TaskGraph
from mfabric_jax.apps.graphs.tasks.graph import TaskKind as TaskKind
from mfabric_jax.apps.graphs.tasks.graph import Tasks as Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks as lower_tasks
from mfabric_jax.flows.flows import Flows as Flows
