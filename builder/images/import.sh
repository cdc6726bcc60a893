#!/bin/bash
# Imports the image of this folder into a container engine, one file, or an OCI layout. README.txt
# says how. The script needs bash, coreutils and tar. It checks everything before it changes
# anything, and a failure leaves nothing behind: the output gets its name only when it is complete.
set -eo pipefail # not -u: for the bash of RHEL 7, an empty array is unset
shopt -s nullglob dotglob globstar
export LC_ALL=C

usage='usage: ./import.sh [--arch amd64|arm64] [--with OLDER]... check | docker [NAME:TAG] | podman [NAME:TAG] | oci DIR | apptainer FILE.sif | enroot FILE.sqsh'
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
part=''       # the folder with the unfinished output
loaded=''     # the engine and the name of an image that it has only during the import
declare -A sums=()                                        # file -> SHA-256
declare -A place=()                                       # digest -> the layout that has the blob
declare -A manifest=() manifest_size=() config=() variant=() # by architecture
declare -a arches=() layers=()
declare -a older=()                                       # the folders of --with
declare -a missing=()                                     # the layers that no folder has

say() { printf '%s\n' "$*" >&2; }
die() { say "import.sh: $*"; exit 1; }
usage_error() { say "import.sh: $*"; say "$usage"; exit 2; }

clean_up() {
    if [[ $loaded ]]; then ${loaded%% *} image rm "${loaded#* }" >/dev/null 2>&1 || true; fi
    if [[ $part ]]; then rm -rf -- "$part"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

read_sums() {
    local line
    [[ -f $here/SHA256SUMS ]] || die "SHA256SUMS is missing: copy the bundle again"
    while IFS= read -r line || [[ $line ]]; do
        [[ $line =~ ^([0-9a-f]{64})\ \ ([A-Za-z0-9._/-]+)$ ]] || die "SHA256SUMS has an invalid line: copy the bundle again"
        sums[${BASH_REMATCH[2]}]=${BASH_REMATCH[1]}
    done < "$here/SHA256SUMS"
    [[ ${sums[contents.tsv]:-} && ${sums[import.sh]:-} && ${sums[image/index.json]:-} ]] || die "SHA256SUMS does not cover the bundle: copy it again"
}

check_files() {
    local file name bad=0
    for file in "$here"/**; do
        name=${file#"$here"/}
        if [[ -L $file ]]; then say "  a link that is not part of the bundle: $name"; bad=1
        elif [[ -d $file ]]; then :
        elif [[ ! ${sums[$name]:-} && $name != SHA256SUMS ]]; then say "  not part of the bundle: $name"; bad=1
        fi
    done
    for name in "${!sums[@]}"; do
        if [[ ! -f $here/$name ]]; then say "  missing: $name"; bad=1
        elif [[ $name == image/blobs/* && ${name##*/} != "${sums[$name]}" ]]; then say "  a blob with the name of another blob: $name"; bad=1
        fi
    done
    [[ $bad == 0 ]] || die "the files of the bundle have changed: copy the bundle again; nothing was changed"
    (cd -- "$here" && sha256sum --quiet --strict --check SHA256SUMS >&2) || die "the bundle is damaged: copy it again; nothing was changed"
}

read_contents() {
    local kind a b c d e f g
    while IFS=$'\t' read -r kind a b c d e f g; do
        case $kind in
            bundle) [[ $a == 1 ]] || die "the format of this bundle is newer than its import.sh" ;;
            name) name=$a ;;
            index) index=$a; index_size=$b ;;
            image) arches+=("$a"); variant[$a]=$b; manifest[$a]=$c; manifest_size[$a]=$d; config[$a]=$e ;;
            layer) layers+=("$a $b $c $d $e $f $g") ;;
            *) die "contents.tsv has an invalid line" ;;
        esac
    done < "$here/contents.tsv"
    [[ ${name:-} && ${index:-} && ${#arches[@]} -gt 0 ]] || die "contents.tsv is incomplete"
}

blob() { printf 'blobs/sha256/%s' "${1#sha256:}"; }

# Sets place[] for the blobs of the given architectures, and missing[] to the layers that no folder
# has. Blobs from the folders of --with are checked, too.
find_blobs() {
    local arch layer of name digest size at folder found layout
    for arch in "$@"; do
        place[${manifest[$arch]}]=$here/image
        place[${config[$arch]}]=$here/image
    done
    for layer in "${layers[@]}"; do
        read -r of name digest size _ _ at <<< "$layer"
        [[ " $* " == *" $of "* && ! ${place[$digest]:-} ]] || continue
        if [[ $at == here ]]; then place[$digest]=$here/image; continue; fi
        found=''
        for folder in "${older[@]}"; do
            for layout in "$folder/image" "$folder"; do
                if [[ ! $found && -f $layout/$(blob "$digest") ]]; then
                    printf '%s  %s\n' "${digest#sha256:}" "$layout/$(blob "$digest")" | sha256sum --quiet --strict --check >&2 ||
                        die "layer $name in $folder is damaged; nothing was changed"
                    found=$layout
                fi
            done
        done
        if [[ $found ]]; then place[$digest]=$found; else missing+=("$layer"); fi
    done
}

list_missing() {
    local layer of name digest size
    for layer in "${missing[@]}"; do
        read -r of name digest size _ <<< "$layer"
        say "  missing: layer $name of linux/$of, $digest, $size bytes"
    done
}

require_layers() {
    [[ ${#missing[@]} == 0 ]] && return
    list_missing
    die "${#missing[@]} layers are not in this bundle: add --with and the folder of the older bundle or OCI layout that has them; nothing was changed"
}

# Prints the bytes of the layers of one architecture that are here. $2 selects the size: 3 for the
# compressed blobs, 4 for the unpacked layers.
count_bytes() {
    local layer field total=0 of
    for layer in "${layers[@]}"; do
        read -r -a field <<< "$layer"
        of=${field[0]}
        if [[ $of == "$1" && ${place[${field[2]}]:-} ]]; then total=$((total + field[$2])); fi
    done
    printf '%s' "$total"
}

require_space() {
    local at=$1 needed=$2 free
    while [[ ! -e $at ]]; do at=$(dirname -- "$at"); done
    free=$(df -B1 --output=avail -- "$at" | tail -n 1)
    ((free >= needed)) || die "$at has $((free / 1000000)) MB free, but $((needed / 1000000)) MB are needed; nothing was changed"
}

# Makes the folder for the unfinished output beside the target. The target must not exist.
begin_output() {
    local target=$1 parent
    [[ $target ]] || usage_error "the command $command needs the path of its output"
    [[ ! -e $target && ! -L $target ]] || die "$target exists: give another path; nothing was changed"
    parent=$(cd -- "$(dirname -- "$target")" 2>/dev/null && pwd -P) || die "the parent folder of $target does not exist; nothing was changed"
    [[ $parent/ != "$here"/* ]] || die "$target is inside the bundle: give a path outside; nothing was changed"
    target=$parent/$(basename -- "$target")
    local new=$parent/.${target##*/}.rosetta-part
    if [[ -f $new/pid ]] && kill -0 "$(< "$new/pid")" 2>/dev/null; then die "another import.sh is writing $target"; fi
    rm -rf -- "$new"
    mkdir -- "$new"
    part=$new
    printf '%s' "$$" > "$part/pid"
    output=$target
}

print_platform() {
    printf '{"architecture":"%s","os":"linux"' "$1"
    if [[ ${variant[$1]} != - ]]; then printf ',"variant":"%s"' "${variant[$1]}"; fi
    printf '}'
}

# Prints an index.json that names the manifest of one architecture, or the index of all.
print_index() {
    local arch=$1 names=$2 described
    if [[ $arch == all ]]; then
        described="\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"digest\":\"$index\",\"size\":$index_size"
    else
        described="\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"${manifest[$arch]}\",\"size\":${manifest_size[$arch]},\"platform\":$(print_platform "$arch")"
    fi
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{%s,"annotations":{%s}}]}' "$described" "$names"
}

# Writes an OCI layout to a folder. The arguments after the first two are the command that puts a
# blob there: cp or ln.
write_layout() {
    local folder=$1 arch=$2 digest
    shift 2
    mkdir -p -- "$folder/blobs/sha256"
    printf '{"imageLayoutVersion":"1.0.0"}' > "$folder/oci-layout"
    for digest in "${!place[@]}"; do "$@" "${place[$digest]}/$(blob "$digest")" "$folder/$(blob "$digest")"; done
    if [[ $arch == all ]]; then
        "$@" "$here/image/$(blob "$index")" "$folder/$(blob "$index")"
        cp -- "$here/image/index.json" "$folder/index.json"
    else
        print_index "$arch" '"org.opencontainers.image.ref.name":"image"' > "$folder/index.json"
    fi
}

full_name() {
    case $1 in
        localhost/* | *.*/* | *:*/*) printf '%s' "$1" ;;
        */*) printf 'docker.io/%s' "$1" ;;
        *) printf 'docker.io/library/%s' "$1" ;;
    esac
}

# Prints the image of one architecture as a tar file for `docker load` and `podman load`. $3 is an
# empty folder for its documents.
print_archive() {
    local arch=$1 tag=$2 work=$3 layer of digest paths='' digests=() arguments=()
    printf '{"imageLayoutVersion":"1.0.0"}' > "$work/oci-layout"
    print_index "$arch" "\"io.containerd.image.name\":\"$(full_name "$tag")\",\"org.opencontainers.image.ref.name\":\"${tag##*:}\"" > "$work/index.json"
    for layer in "${layers[@]}"; do
        read -r of _ digest _ <<< "$layer"
        if [[ $of == "$arch" ]]; then paths+="${paths:+,}\"$(blob "$digest")\""; fi
    done
    printf '[{"Config":"%s","RepoTags":["%s"],"Layers":[%s]}]' "$(blob "${config[$arch]}")" "$tag" "$paths" > "$work/manifest.json"
    digests=("${!place[@]}")
    for digest in "${digests[@]}"; do arguments+=(-C "${place[$digest]}" "$(blob "$digest")"); done
    tar --format=posix --owner=0 --group=0 -cf - -C "$work" oci-layout index.json manifest.json "${arguments[@]}"
}

require_tool() { command -v "$1" >/dev/null || die "$1 is not on PATH: install $1, or correct PATH; nothing was changed"; }

# Succeeds if the engine has all missing layers. An engine knows a layer by the digest of its unpacked
# content.
engine_has() {
    local engine=$1 images=() known layer diff
    [[ ${#missing[@]} -gt 0 ]] || return 0
    mapfile -t images < <($engine image ls --quiet --no-trunc)
    [[ ${#images[@]} -gt 0 ]] || return 1
    known=" $($engine image inspect --format '{{range .RootFS.Layers}}{{.}} {{end}}' "${images[@]}" | tr '\n' ' ')"
    for layer in "${missing[@]}"; do
        read -r _ _ _ _ _ diff _ <<< "$layer"
        [[ $known == *" $diff "* ]] || return 1
    done
}

load_image() {
    local engine=$1 arch=$2 tag=$3 root format='{{.DockerRootDir}}' id work
    [[ $tag =~ ^[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] || usage_error "$tag does not have the form NAME:TAG"
    require_tool "$engine"
    if [[ $engine == podman ]]; then format='{{.Store.GraphRoot}}'; fi
    root=$($engine info --format "$format") || die "$engine does not answer; nothing was changed"
    engine_has "$engine" || require_layers
    if [[ -d $root ]]; then require_space "$root" $(($(count_bytes "$arch" 3) + $(count_bytes "$arch" 4))); fi
    if [[ ! $part ]]; then part=$(mktemp -d); fi
    work=$part/rosetta-import
    mkdir -- "$work"
    if [[ $engine == podman && ${#missing[@]} -gt 0 ]]; then # podman load needs every layer; podman pull needs only those that podman does not have
        write_layout "$work" "$arch" ln -s --
        id=$(cd -- "$part" && podman pull --quiet oci:rosetta-import:image) || { list_missing; die "podman did not load the image: add --with; the name $tag has not changed"; }
        podman tag "$id" "$tag"
        podman untag "$id" localhost/rosetta-import:latest
    else
        print_archive "$arch" "$tag" "$work" | $engine load >&2 || {
            list_missing
            die "$engine did not load the image${missing[*]:+ (it may lack a layer that is not in the bundle: add --with)}; the name $tag has not changed"
        }
    fi
    id=$($engine image inspect --format '{{.Id}}' "$tag")
    [[ sha256:${id#sha256:} == "${config[$arch]}" || $id == "${manifest[$arch]}" ]] || die "$engine made an image with another digest: $id"
    say "$tag is ${manifest[$arch]}"
}

arch=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --arch) [[ $# -gt 1 ]] || usage_error "--arch needs a value"; arch=$2; shift 2 ;;
        --with) [[ $# -gt 1 && -d $2 ]] || usage_error "--with needs a folder"; older+=("$(cd -- "$2" && pwd -P)"); shift 2 ;;
        -h | --help) say "$usage"; exit 0 ;;
        -*) usage_error "$1 is not an option" ;;
        *) break ;;
    esac
done
command=${1:-}
argument=${2:-}
[[ $# -le 2 ]] || usage_error "too many arguments"
case $command in
    check | docker | podman | oci | apptainer | enroot) ;;
    '') usage_error "a command is missing" ;;
    *) usage_error "$command is not a command" ;;
esac

for program in sha256sum tar df tail tr uname cp mv ln rm mkdir mktemp; do require_tool "$program"; done
say "checking the bundle"
read_sums
check_files
read_contents
given_arch=$arch
if [[ ! $arch ]]; then
    case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
fi
if [[ $command == check || ($command == oci && ! $given_arch) ]]; then
    find_blobs "${arches[@]}"
else
    [[ ${manifest[$arch]:-} ]] || die "the bundle has no image for $arch, only for ${arches[*]}: see --arch; nothing was changed"
    find_blobs "$arch"
fi

case $command in
    check)
        list_missing
        say "all ${#sums[@]} files are unchanged"
        if [[ ${#missing[@]} -gt 0 ]]; then say "${#missing[@]} layers are not in this bundle, but an import needs them: see --with"; fi
        printf '%s %s\n' "$name" "$index"
        ;;
    docker | podman)
        load_image "$command" "$arch" "${argument:-$name}"
        ;;
    oci)
        require_layers
        begin_output "$argument"
        if [[ $given_arch ]]; then
            require_space "$part" "$(count_bytes "$arch" 3)"
            write_layout "$part/layout" "$arch" cp --reflink=auto --
        else
            total=0
            for architecture in "${arches[@]}"; do total=$((total + $(count_bytes "$architecture" 3))); done
            require_space "$part" "$total"
            write_layout "$part/layout" all cp --reflink=auto --
        fi
        mv -T -- "$part/layout" "$output"
        say "$output is an OCI layout of $name"
        ;;
    apptainer)
        require_layers
        tool=apptainer
        command -v apptainer >/dev/null || tool=singularity
        require_tool "$tool"
        begin_output "$argument"
        require_space "$part" $(($(count_bytes "$arch" 3) + $(count_bytes "$arch" 4)))
        write_layout "$part/layout" "$arch" ln -s --
        mkdir -- "$part/tmp"
        export APPTAINER_TMPDIR=${APPTAINER_TMPDIR:-$part/tmp} SINGULARITY_TMPDIR=${SINGULARITY_TMPDIR:-$part/tmp}
        (cd -- "$part" && "$tool" build image.sif oci:layout:image >&2) || die "$tool did not make the file; nothing is left behind"
        [[ -f $part/image.sif ]] || die "$tool made no file"
        mv -T -- "$part/image.sif" "$output"
        say "$output has the image ${manifest[$arch]}"
        ;;
    enroot)
        require_tool enroot
        engine=''
        for candidate in docker podman; do
            if [[ ! $engine ]] && command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then engine=$candidate; fi
        done
        [[ $engine ]] || die "enroot imports an image only from docker, podman or a registry, and neither docker nor podman runs here: use a machine where one of them runs, or push image/ to a registry; nothing was changed"
        begin_output "$argument"
        require_space "$part" $(($(count_bytes "$arch" 3) + $(count_bytes "$arch" 4)))
        tag=rosetta-import:${manifest[$arch]:7:12}
        loaded="$engine $tag"
        load_image "$engine" "$arch" "$tag"
        scheme=dockerd
        if [[ $engine == podman ]]; then scheme=podman; fi
        (cd -- "$part" && enroot import --output image.sqsh "$scheme://$tag" >&2) || die "enroot did not make the file; nothing is left behind"
        [[ -f $part/image.sqsh ]] || die "enroot made no file"
        mv -T -- "$part/image.sqsh" "$output"
        say "$output has the image ${manifest[$arch]}"
        ;;
esac
