#!/bin/bash
# Takes the image of this folder in: into an engine, one file, or an OCI layout. README.txt says how; bash, coreutils and tar are enough.
# Everything is checked before anything is touched, and a failure leaves nothing: what is made stands beside its place until it is whole.
set -eo pipefail # not -u: an empty array is unset to the bash of RHEL 7
shopt -s nullglob dotglob globstar
export LC_ALL=C

usage='usage: ./import.sh [--arch amd64|arm64] [--with OLDER]... check | docker [NAME:TAG] | podman [NAME:TAG] | oci DIR | apptainer FILE.sif | enroot FILE.sqsh'
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
part=''       # what is being made
loaded=''     # an engine and the name it was given for the time of an import
declare -A sums=() place=()
declare -A manifest=() manifest_size=() config=() variant=()
declare -a arches=() layers=() olds=() lost=()

say() { printf '%s\n' "$*" >&2; }
die() { say "import.sh: $*"; exit 1; }
wrong() { say "import.sh: $*"; say "$usage"; exit 2; }

tidy() {
    if [[ $loaded ]]; then ${loaded%% *} image rm "${loaded#* }" >/dev/null 2>&1 || true; fi
    if [[ $part ]]; then rm -rf -- "$part"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

read_sums() {
    local line
    [[ -f $here/SHA256SUMS ]] || die "SHA256SUMS is missing: copy the bundle again"
    while IFS= read -r line || [[ $line ]]; do
        [[ $line =~ ^([0-9a-f]{64})\ \ ([A-Za-z0-9._/-]+)$ ]] || die "SHA256SUMS has a line that is none: copy the bundle again"
        sums[${BASH_REMATCH[2]}]=${BASH_REMATCH[1]}
    done < "$here/SHA256SUMS"
    [[ ${sums[contents.tsv]:-} && ${sums[import.sh]:-} && ${sums[image/index.json]:-} ]] || die "SHA256SUMS does not cover the bundle: copy it again"
}

check_files() {
    local file name bad=0
    for file in "$here"/**; do
        name=${file#"$here"/}
        if [[ -L $file ]]; then say "  a link that does not belong here: $name"; bad=1
        elif [[ -d $file ]]; then :
        elif [[ ! ${sums[$name]:-} && $name != SHA256SUMS ]]; then say "  does not belong here: $name"; bad=1
        fi
    done
    for name in "${!sums[@]}"; do
        if [[ ! -f $here/$name ]]; then say "  missing: $name"; bad=1
        elif [[ $name == image/blobs/* && ${name##*/} != "${sums[$name]}" ]]; then say "  a blob under another's name: $name"; bad=1
        fi
    done
    [[ $bad == 0 ]] || die "the bundle is not as it was made: copy it again; nothing was touched"
    (cd -- "$here" && sha256sum --quiet --strict --check SHA256SUMS >&2) || die "the bundle is damaged: copy it again; nothing was touched"
}

read_contents() {
    local kind a b c d e f g
    while IFS=$'\t' read -r kind a b c d e f g; do
        case $kind in
            bundle) [[ $a == 1 ]] || die "this bundle is of a newer kind than its import.sh" ;;
            name) name=$a ;;
            index) index=$a; index_size=$b ;;
            image) arches+=("$a"); variant[$a]=$b; manifest[$a]=$c; manifest_size[$a]=$d; config[$a]=$e ;;
            layer) layers+=("$a $b $c $d $e $f $g") ;;
            *) die "contents.tsv has a line that is none" ;;
        esac
    done < "$here/contents.tsv"
    [[ ${name:-} && ${index:-} && ${#arches[@]} -gt 0 ]] || die "contents.tsv is not whole"
}

blob() { printf 'blobs/sha256/%s' "${1#sha256:}"; }

# Sets place[] for the blobs of the architectures given, and lost[] to the layers that are nowhere; what --with brings is checked too.
find_blobs() {
    local arch layer of what digest size at old found digests
    for arch in "$@"; do
        place[${manifest[$arch]}]=$here/image
        place[${config[$arch]}]=$here/image
    done
    for layer in "${layers[@]}"; do
        read -r of what digest size _ _ at <<< "$layer"
        [[ " $* " == *" $of "* && ! ${place[$digest]:-} ]] || continue
        if [[ $at == here ]]; then place[$digest]=$here/image; continue; fi
        found=''
        for old in "${olds[@]}"; do
            for digests in "$old/image" "$old"; do
                if [[ ! $found && -f $digests/$(blob "$digest") ]]; then
                    printf '%s  %s\n' "${digest#sha256:}" "$digests/$(blob "$digest")" | sha256sum --quiet --strict --check >&2 ||
                        die "layer $what in $old is damaged; nothing was touched"
                    found=$digests
                fi
            done
        done
        if [[ $found ]]; then place[$digest]=$found; else lost+=("$layer"); fi
    done
}

list_lost() {
    local layer of what digest size
    for layer in "${lost[@]}"; do
        read -r of what digest size _ <<< "$layer"
        say "  not here: layer $what of linux/$of, $digest, $size bytes"
    done
}

need_all() {
    [[ ${#lost[@]} == 0 ]] && return
    list_lost
    die "${#lost[@]} layers were left out of this bundle: add --with and the older bundle or OCI layout that has them; nothing was touched"
}

# Bytes of the layers of one architecture, without those that are nowhere here: $2 is 3 for their blobs, 4 for what they unpack to.
bytes() {
    local layer field total=0 of
    for layer in "${layers[@]}"; do
        read -r -a field <<< "$layer"
        of=${field[0]}
        if [[ $of == "$1" && ${place[${field[2]}]:-} ]]; then total=$((total + field[$2])); fi
    done
    printf '%s' "$total"
}

need_space() {
    local at=$1 needed=$2 free
    while [[ ! -e $at ]]; do at=$(dirname -- "$at"); done
    free=$(df -B1 --output=avail -- "$at" | tail -n 1)
    ((free >= needed)) || die "$at has $((free / 1000000)) MB free and $((needed / 1000000)) MB are needed; nothing was touched"
}

# A fresh folder beside the target, which must not exist.
begin() {
    local target=$1 parent
    [[ $target ]] || wrong "where to?"
    [[ ! -e $target && ! -L $target ]] || die "$target is there already: give another place; nothing was touched"
    parent=$(cd -- "$(dirname -- "$target")" 2>/dev/null && pwd -P) || die "the folder of $target is not there; nothing was touched"
    [[ $parent/ != "$here"/* ]] || die "$target would lie in the bundle: give a place outside it; nothing was touched"
    target=$parent/$(basename -- "$target")
    local new=$parent/.${target##*/}.rosetta-part
    if [[ -f $new/pid ]] && kill -0 "$(< "$new/pid")" 2>/dev/null; then die "another import.sh is making $target"; fi
    rm -rf -- "$new"
    mkdir -- "$new"
    part=$new
    printf '%s' "$$" > "$part/pid"
    output=$target
}

platform() {
    printf '{"architecture":"%s","os":"linux"' "$1"
    if [[ ${variant[$1]} != - ]]; then printf ',"variant":"%s"' "${variant[$1]}"; fi
    printf '}'
}

# index.json that names one architecture's manifest, or the index over all.
index_json() {
    local arch=$1 names=$2 described
    if [[ $arch == all ]]; then
        described="\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"digest\":\"$index\",\"size\":$index_size"
    else
        described="\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"${manifest[$arch]}\",\"size\":${manifest_size[$arch]},\"platform\":$(platform "$arch")"
    fi
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{%s,"annotations":{%s}}]}' "$described" "$names"
}

# A layout in an empty folder; $3 is how a blob gets there.
layout() {
    local folder=$1 arch=$2 digest
    shift 2
    mkdir -p -- "$folder/blobs/sha256"
    printf '{"imageLayoutVersion":"1.0.0"}' > "$folder/oci-layout"
    for digest in "${!place[@]}"; do "$@" "${place[$digest]}/$(blob "$digest")" "$folder/$(blob "$digest")"; done
    if [[ $arch == all ]]; then
        "$@" "$here/image/$(blob "$index")" "$folder/$(blob "$index")"
        cp -- "$here/image/index.json" "$folder/index.json"
    else
        index_json "$arch" '"org.opencontainers.image.ref.name":"image"' > "$folder/index.json"
    fi
}

full_name() {
    case $1 in
        localhost/* | *.*/* | *:*/*) printf '%s' "$1" ;;
        */*) printf 'docker.io/%s' "$1" ;;
        *) printf 'docker.io/library/%s' "$1" ;;
    esac
}

# One architecture as a tar for `docker load` and `podman load`; $3 is an empty folder for its documents.
archive() {
    local arch=$1 tag=$2 work=$3 layer of digest paths='' digests=() arguments=()
    printf '{"imageLayoutVersion":"1.0.0"}' > "$work/oci-layout"
    index_json "$arch" "\"io.containerd.image.name\":\"$(full_name "$tag")\",\"org.opencontainers.image.ref.name\":\"${tag##*:}\"" > "$work/index.json"
    for layer in "${layers[@]}"; do
        read -r of _ digest _ <<< "$layer"
        if [[ $of == "$arch" ]]; then paths+="${paths:+,}\"$(blob "$digest")\""; fi
    done
    printf '[{"Config":"%s","RepoTags":["%s"],"Layers":[%s]}]' "$(blob "${config[$arch]}")" "$tag" "$paths" > "$work/manifest.json"
    digests=("${!place[@]}")
    for digest in "${digests[@]}"; do arguments+=(-C "${place[$digest]}" "$(blob "$digest")"); done
    tar --format=posix --owner=0 --group=0 -cf - -C "$work" oci-layout index.json manifest.json "${arguments[@]}"
}

need_tool() { command -v "$1" >/dev/null || die "$1 is not on PATH: install it, or correct PATH; nothing was touched"; }

# Does the engine hold the layers that are nowhere here? By what they unpack to, which is what it knows them by.
engine_has() {
    local engine=$1 images=() known layer diff
    [[ ${#lost[@]} -gt 0 ]] || return 0
    mapfile -t images < <($engine image ls --quiet --no-trunc)
    [[ ${#images[@]} -gt 0 ]] || return 1
    known=" $($engine image inspect --format '{{range .RootFS.Layers}}{{.}} {{end}}' "${images[@]}" | tr '\n' ' ')"
    for layer in "${lost[@]}"; do
        read -r _ _ _ _ _ diff _ <<< "$layer"
        [[ $known == *" $diff "* ]] || return 1
    done
}

load() {
    local engine=$1 arch=$2 tag=$3 root format='{{.DockerRootDir}}' id work
    [[ $tag =~ ^[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] || wrong "$tag is not NAME:TAG"
    need_tool "$engine"
    if [[ $engine == podman ]]; then format='{{.Store.GraphRoot}}'; fi
    root=$($engine info --format "$format") || die "$engine does not answer; nothing was touched"
    engine_has "$engine" || need_all
    if [[ -d $root ]]; then need_space "$root" $(($(bytes "$arch" 3) + $(bytes "$arch" 4))); fi
    if [[ ! $part ]]; then part=$(mktemp -d); fi
    work=$part/rosetta-import
    mkdir -- "$work"
    if [[ $engine == podman && ${#lost[@]} -gt 0 ]]; then # podman load wants every layer; podman pull does not ask for those it knows
        layout "$work" "$arch" ln -s --
        id=$(cd -- "$part" && podman pull --quiet oci:rosetta-import:image) || { list_lost; die "podman did not take the image: add --with; the name $tag is as it was"; }
        podman tag "$id" "$tag"
        podman untag "$id" localhost/rosetta-import:latest
    else
        archive "$arch" "$tag" "$work" | $engine load >&2 || {
            list_lost
            die "$engine did not take the image${lost[*]:+ (it may lack a layer that was left out: add --with)}; the name $tag is as it was"
        }
    fi
    id=$($engine image inspect --format '{{.Id}}' "$tag")
    [[ sha256:${id#sha256:} == "${config[$arch]}" || $id == "${manifest[$arch]}" ]] || die "$engine made another image of it: $id"
    say "$tag is ${manifest[$arch]}"
}

arch=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --arch) [[ $# -gt 1 ]] || wrong "--arch needs a value"; arch=$2; shift 2 ;;
        --with) [[ $# -gt 1 && -d $2 ]] || wrong "--with needs a folder"; olds+=("$(cd -- "$2" && pwd -P)"); shift 2 ;;
        -h | --help) say "$usage"; exit 0 ;;
        -*) wrong "$1 is no option" ;;
        *) break ;;
    esac
done
command=${1:-}
argument=${2:-}
[[ $# -le 2 ]] || wrong "too many arguments"
case $command in
    check | docker | podman | oci | apptainer | enroot) ;;
    '') wrong "what is to be done?" ;;
    *) wrong "$command is no command" ;;
esac

for each in sha256sum tar df tail tr uname cp mv ln rm mkdir mktemp; do need_tool "$each"; done
say "checking the bundle"
read_sums
check_files
read_contents
asked=$arch
if [[ ! $arch ]]; then
    case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
fi
if [[ $command == check || ($command == oci && ! $asked) ]]; then
    find_blobs "${arches[@]}"
else
    [[ ${manifest[$arch]:-} ]] || die "the bundle has no image for $arch, only for ${arches[*]}: see --arch; nothing was touched"
    find_blobs "$arch"
fi

case $command in
    check)
        list_lost
        say "all ${#sums[@]} files are as they were made"
        if [[ ${#lost[@]} -gt 0 ]]; then say "${#lost[@]} layers were left out, and an import needs them: see --with"; fi
        printf '%s %s\n' "$name" "$index"
        ;;
    docker | podman)
        load "$command" "$arch" "${argument:-$name}"
        ;;
    oci)
        need_all
        begin "$argument"
        if [[ $asked ]]; then
            need_space "$part" "$(bytes "$arch" 3)"
            layout "$part/layout" "$arch" cp --reflink=auto --
        else
            total=0
            for each in "${arches[@]}"; do total=$((total + $(bytes "$each" 3))); done
            need_space "$part" "$total"
            layout "$part/layout" all cp --reflink=auto --
        fi
        mv -T -- "$part/layout" "$output"
        say "$output is an OCI layout of $name"
        ;;
    apptainer)
        need_all
        tool=apptainer
        command -v apptainer >/dev/null || tool=singularity
        need_tool "$tool"
        begin "$argument"
        need_space "$part" $(($(bytes "$arch" 3) + $(bytes "$arch" 4)))
        layout "$part/layout" "$arch" ln -s --
        mkdir -- "$part/tmp"
        export APPTAINER_TMPDIR=${APPTAINER_TMPDIR:-$part/tmp} SINGULARITY_TMPDIR=${SINGULARITY_TMPDIR:-$part/tmp}
        (cd -- "$part" && "$tool" build image.sif oci:layout:image >&2) || die "$tool did not make the file; nothing is left of it"
        [[ -f $part/image.sif ]] || die "$tool made no file"
        mv -T -- "$part/image.sif" "$output"
        say "$output is made of ${manifest[$arch]}"
        ;;
    enroot)
        need_tool enroot
        engine=''
        for each in docker podman; do
            if [[ ! $engine ]] && command -v "$each" >/dev/null && "$each" info >/dev/null 2>&1; then engine=$each; fi
        done
        [[ $engine ]] || die "enroot takes an image only from docker, podman or a registry, and neither of the two answers here: run this where one does, or push image/ to a registry; nothing was touched"
        begin "$argument"
        need_space "$part" $(($(bytes "$arch" 3) + $(bytes "$arch" 4)))
        tag=rosetta-import:${manifest[$arch]:7:12}
        loaded="$engine $tag"
        load "$engine" "$arch" "$tag"
        scheme=dockerd
        if [[ $engine == podman ]]; then scheme=podman; fi
        (cd -- "$part" && enroot import --output image.sqsh "$scheme://$tag" >&2) || die "enroot did not make the file; nothing is left of it"
        [[ -f $part/image.sqsh ]] || die "enroot made no file"
        mv -T -- "$part/image.sqsh" "$output"
        say "$output is made of ${manifest[$arch]}"
        ;;
esac
