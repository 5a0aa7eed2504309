"""Storage's errors, as the ones that people and scripts know: `storage.errors` → `chatcache.errors`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chatcache.errors import (
    DataDirLockedError,
    InvalidInputError,
    NotFoundError,
    Reason,
    ServiceClosedError,
    StaleTipError,
    StorageError,
)
from storage import errors as store_errors


@contextlib.contextmanager
def translated_store_errors() -> Iterator[None]:
    """Whatever `storage` raises inside is raised as its counterpart, from it."""
    try:
        yield
    except store_errors.RowNotFoundError as error:
        raise NotFoundError(str(error)) from error
    except store_errors.StaleVersionError as error:
        raise StaleTipError(str(error)) from error
    except store_errors.FileRefusedError as error:
        raise InvalidInputError(str(error), Reason(error.fault), **error.facts) from error
    except store_errors.InvalidRecordError as error:
        raise InvalidInputError(str(error)) from error
    except store_errors.DatabaseClosedError as error:
        raise ServiceClosedError from error
    except store_errors.DataDirLockedError as error:
        raise DataDirLockedError(str(error)) from error
    except store_errors.DiskFullError as error:
        raise StorageError(str(error), Reason.DISK_FULL) from error
    except store_errors.StoreError as error:
        raise StorageError(str(error)) from error
