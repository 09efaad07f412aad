"""Earlier runs in an output folder: is it this command's, finished or not, and may this run go on from it?

Compares what the folder records with the job at hand; reads sources again where that takes it, but encodes
nothing and writes nothing of a dataset.
"""

import hashlib
from contextlib import closing
from typing import Any

from packtool.accounts import recorded_name
from packtool.errors import BadData, Misuse
from packtool.executor import run_in_order
from packtool.intake import units_of
from packtool.job import Job, difference
from packtool.manifest import Manifest, read_manifest
from packtool.output import OutputFolder
from packtool.progress import Listener, Notice
from packtool.readers import Unit, open_unit
from packtool.sources import shown


def recorded_options(output: OutputFolder) -> dict[str, Any]:
    """The options of the run that the folder has, unfinished or finished; empty where there is none to read."""
    if output.is_begun():
        options = output.unfinished_command().get("options")
        return options if isinstance(options, dict) else {}
    try:
        return read_manifest(output.path).options
    except BadData:
        return {}


def already_done(job: Job, output: OutputFolder, on_event: Listener) -> Manifest:
    """The manifest of a finished run of the same command; reads the sources again, but encodes nothing."""
    try:
        manifest = read_manifest(output.path)
    except BadData as error:
        raise Misuse(f"{error}; choose another folder, or remove this one") from None
    then = {
        "options": manifest.options,
        "sources": [source.name for source in manifest.sources],
        "tokenizer": {
            "digest": manifest.tokenizer.digest,
            "bos_ids": list(manifest.tokenizer.bos_ids),
            "eos_id": manifest.tokenizer.eos_id,
            "pad_id": manifest.tokenizer.pad_id if manifest.padded else None,
        },
        "template": manifest.template_digest,
    }
    names = [recorded_name(source.name) for source in job.sources]
    now = {**job.command, "sources": names, "versions": {}}
    if told := difference(now, then):
        raise Misuse(
            f"{output.path}: holds the dataset of another command ({'; '.join(told)}); "
            "choose another folder, or --overwrite it"
        )
    if now != {**then, "versions": {}}:
        raise Misuse(f"{output.path}: holds the dataset of another command; choose another folder, or --overwrite it")
    digests = [hashlib.sha256() for _ in job.sources]
    with closing(run_in_order(_digest_unit, units_of(job), job.config.worker_count)) as found:
        for index, digest_of_unit in found:
            digests[index].update(digest_of_unit.encode())
    for source, digest, entry in zip(job.sources, digests, manifest.sources, strict=True):
        if digest.hexdigest() != entry.digest:
            raise Misuse(
                f"{output.path}: was packed from other data: {shown(source.path)} has changed since; "
                "choose another folder, or --overwrite it"
            )
    sizes = {file.name: file.bytes for file in manifest.files} | {shard.name: shard.bytes for shard in manifest.shards}
    for name, size in sizes.items():
        path = output.path / name
        if not path.is_file() or path.stat().st_size != size:
            raise Misuse(
                f"{path}: is not as this command left it (packtool verify tells more); "
                f"choose another folder, or --overwrite {output.path}"
            )
    on_event(Notice("this command is done already; nothing was changed"))
    return manifest


def continue_or_refuse(job: Job, output: OutputFolder, on_event: Listener) -> None:
    then = output.unfinished_command()
    if then == job.command:
        on_event(Notice("continuing an unfinished run of this command"))
        return
    told = ("; ".join(difference(job.command, then)) if then else "") or "its record cannot be read"
    if not job.config.overwrite:
        raise Misuse(
            f"{output.path}: an unfinished run of another command is here ({told}); "
            "run that one to its end, choose another folder, or start anew with --overwrite"
        )
    if not output.is_publishing():
        output.forget_unfinished()


def _digest_unit(unit: Unit) -> tuple[int, str]:
    return unit.source, open_unit(unit, ()).digest
