"""Independent jobs: one after another here, in several processes, or on a Ray cluster.

A job is a function whose last argument is a `RunProgress`. Results come as jobs finish. Jobs need not be of torch:
this file does not import it, and bounds its threads where a job's own module has loaded it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from queue import Empty
from typing import Any

from pluto_edge.errors import ConfigError, MissingExtraError, PlutoError
from pluto_edge.train.progress import Message, Relay, RunProgress

Job = Callable[..., str]
Arguments = Sequence[tuple[object, ...]]

POLL, GRACE = 0.2, 5.0  # seconds: between looks at the queue; for a process to end
RETRIES = 3  # of a job on Ray whose node or process was lost, not of one that failed
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Workers:
    """`jobs` processes, or the Ray cluster that is found; each job with `threads`.

    Without `threads` the jobs share what torch would use alone (OMP_NUM_THREADS, or all cores); on Ray, one. A job
    on Ray whose node or process is lost is started again elsewhere: it should go on from what it had written.
    """

    jobs: int = 1
    threads: int | None = None
    ray: bool = False

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: want at least 1, got {value}")

    @property
    def parallel(self) -> bool:
        """Whether several jobs run at the same time."""
        return self.ray or self.jobs > 1

    @property
    def share(self) -> int | None:
        """Threads of one job; None where jobs run here, one by one, with as many as there are."""
        if self.threads is not None or not self.parallel:
            return self.threads
        return 1 if self.ray else max(1, _threads_here() // self.jobs)

    def each(self, job: Job, arguments: Arguments, progress: RunProgress, title: str) -> Iterator[str]:
        """Run `job` with every tuple of arguments; gives its results as they come."""
        if not arguments:
            return
        run = self._on_ray if self.ray else self._in_processes if min(self.jobs, len(arguments)) > 1 else self._here
        progress.step(title, 0, len(arguments))
        for count, result in enumerate(run(job, arguments, progress), 1):
            yield result
            progress.step(title, count, len(arguments))

    def _here(self, job: Job, arguments: Arguments, progress: RunProgress) -> Iterator[str]:
        for a in arguments:
            yield job(*a, progress)

    def _in_processes(self, job: Job, arguments: Arguments, progress: RunProgress) -> Iterator[str]:
        context = get_context("spawn")
        others = set(active_children())
        threads = self.share or 1
        inbox, outbox = context.Pipe(duplex=False)
        start = (outbox, context.Lock())
        pool = ProcessPoolExecutor(min(self.jobs, len(arguments)), context, _start_worker, start)

        def get() -> Message:
            if not inbox.poll(POLL):
                raise Empty
            message: Message = inbox.recv()
            return message

        try:
            # the processes inherit both: Ctrl-C is this process's to handle
            with _deaf_to_interrupts(), _numpy_threads(threads):
                futures = [pool.submit(_work, job, a, threads) for a in arguments]
            with _relayed(get, progress):
                yield from (f.result() for f in as_completed(futures))
        except BrokenProcessPool as cause:
            raise PlutoError(
                "a process of --jobs was killed, perhaps for want of memory; go on with --into and fewer jobs"
            ) from cause
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            workers = set(active_children()) - others
            for process in workers:
                process.terminate()
            for process in workers:
                process.join(GRACE)

    def _on_ray(self, job: Job, arguments: Arguments, progress: RunProgress) -> Iterator[str]:
        ray = _connect()
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # the queue stays with this process: on another node it would be lost with that node
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        threads = self.share or 1
        remote = ray.remote(num_cpus=threads, max_retries=RETRIES)(_work_on_ray)
        pending = [remote.remote(job, a, threads, queue) for a in arguments]
        try:
            with _relayed(lambda: queue.get(timeout=POLL), progress):
                while pending:
                    done, pending = ray.wait(pending, num_returns=1)
                    yield ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as cause:
            raise PlutoError(
                f"a job was lost with its node or process {RETRIES + 1} times; look at the cluster's memory with "
                "`ray status`. What was written is kept: the same command goes on (pluto train: with --into)"
            ) from cause
        finally:
            for task in pending:
                ray.cancel(task, force=True)
            queue.shutdown(force=True)


@contextmanager
def _numpy_threads(count: int) -> Iterator[None]:
    """Processes that are started in the block have so many threads for NumPy, too, unless the user has chosen.

    NumPy's BLAS asks the environment once, when it is loaded. Left alone it takes all cores in every process, and
    threads that wait for each other on a busy machine made a signature of seconds one of minutes.
    """
    chosen = [name for name in BLAS if name not in os.environ]
    os.environ.update(dict.fromkeys(chosen, str(count)))
    try:
        yield
    finally:
        for name in chosen:
            del os.environ[name]


_put: Callable[[Message], object]  # of a worker process: where its progress goes


def _start_worker(outbox: Any, lock: Any) -> None:
    global _put

    def put(message: Message) -> None:
        with lock:
            outbox.send(message)

    _put = put
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed run must not leave processes that train on."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _threads_here() -> int:
    """As many as torch would use here, whether or not it is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else os.cpu_count() or 1


def _bound(threads: int) -> None:
    """To be called in the process of a job: by then its module, which loads torch if it needs it, is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _work(job: Job, arguments: tuple[object, ...], threads: int) -> str:
    _bound(threads)
    return job(*arguments, Relay(_put))


def _work_on_ray(job: Job, arguments: tuple[object, ...], threads: int, queue: Any) -> str:
    _bound(threads)
    return job(*arguments, Relay(queue.put))


def _connect() -> Any:
    try:
        import ray
    except ImportError as cause:
        raise MissingExtraError("ray", "ray") from cause
    if not ray.is_initialized():
        try:
            ray.init(address="auto")
        except ConnectionError as cause:
            raise ConfigError("--ray: no Ray cluster found; start one with `ray start --head`") from cause
    return ray


@contextmanager
def _relayed(get: Callable[[], Message], progress: RunProgress) -> Iterator[None]:
    """While the block runs, and until nothing is left if it ends well, what `get` gives goes to `progress`."""
    finished, stopped = threading.Event(), threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            try:
                message = get()
            except Empty:
                if finished.is_set():
                    return
                continue
            progress.step(*message)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
        finished.set()
    except BaseException:
        stopped.set()
        raise
    finally:
        thread.join(GRACE)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
