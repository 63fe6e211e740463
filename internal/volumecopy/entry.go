package volumecopy

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the kind of an entry.
type Kind byte

// Kinds of entries. Sockets are left out, and devices refused.
const (
	Directory Kind = tar.TypeDir
	File      Kind = tar.TypeReg
	Symlink   Kind = tar.TypeSymlink
	// HardLink is another name of a file that precedes it.
	HardLink Kind = tar.TypeLink
	FIFO     Kind = tar.TypeFifo
)

// extent is a part of a file that has data. The rest of the file is zeros.
type extent struct{ offset, length int64 }

// Entry is one name on a volume.
type Entry struct {
	// Path is relative to the volume's root, with slashes; the root is a dot.
	Path     string
	Kind     Kind
	Mode     uint32 // permissions, and the bits for set-user-ID, set-group-ID and sticky
	UID, GID int
	ModTime  time.Time
	Size     int64
	// Link is the target of a symbolic link, or the path of the file of which a hard link is another name.
	Link   string
	Xattrs map[string]string
	// extents are the parts with data of a file; nil means all of it.
	extents []extent
	// have means that the destination has the file, so that its data do not follow.
	have bool
}

// marker begins the name of the directory, at the root of a destination, in which files are until
// they are complete. It exists until the copy is verified.
const marker = ".entente-move-"

// Records of an archive's headers, in addition to those of tar.
const (
	recordXattr   = "SCHILY.xattr."
	recordExtents = "ENTENTE.extents"
	recordSize    = "ENTENTE.size"
	recordHave    = "ENTENTE.have"
)

// keptXattr reports whether an extended attribute is copied: those of applications, capabilities,
// and access lists. Others, such as SELinux labels, belong to the node.
func keptXattr(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// checkPath checks that a path can be one of a volume: below its root, in canonical form.
func checkPath(path string) error {
	if path == "." {
		return nil
	}
	if path == "" || len(path) > maxPath || strings.ContainsRune(path, 0) {
		return fmt.Errorf("malformed path %.64q", path)
	}
	if strings.HasPrefix(path, marker) {
		return fmt.Errorf("path %.64q is reserved for volumes that are copied", path)
	}
	if strings.Count(path, "/") >= maxDepth {
		return fmt.Errorf("path %.64q has more than %d elements", path, maxDepth)
	}
	for element := range strings.SplitSeq(path, "/") {
		if element == "" || element == "." || element == ".." || len(element) > maxName {
			return fmt.Errorf("malformed path %.64q", path)
		}
	}
	return nil
}

// check checks that an entry, which may come from the other side, can be one of a volume.
func (e *Entry) check() error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	problem := ""
	switch {
	case e.Path == "." && e.Kind != Directory:
		problem = "is the root but not a directory"
	case e.Mode > 0o7777:
		problem = fmt.Sprintf("has mode %o", e.Mode)
	case e.UID < 0 || e.GID < 0 || int64(e.UID) >= 1<<32-1 || int64(e.GID) >= 1<<32-1:
		problem = fmt.Sprintf("belongs to %d:%d", e.UID, e.GID)
	case e.ModTime.Year() < 1 || e.ModTime.Year() > 9999:
		problem = "has a modification time that cannot be written"
	case e.Size < 0 || e.Size > maxSize || e.Size > 0 && e.Kind != File:
		problem = fmt.Sprintf("has %d bytes", e.Size)
	case e.Kind == Symlink && (e.Link == "" || len(e.Link) > maxPath || strings.ContainsRune(e.Link, 0)):
		problem = "leads nowhere"
	case e.Kind == HardLink && (checkPath(e.Link) != nil || e.Link == "." || e.Link == e.Path):
		problem = "is a hard link without a file"
	case e.Kind != Symlink && e.Kind != HardLink && e.Link != "":
		problem = "has a target but is not a link"
	case len(e.extents) > maxExtents || e.have && e.extents != nil || (e.have || e.extents != nil) && e.Kind != File:
		problem = "has parts that it cannot have"
	case len(e.Xattrs) > 0 && e.Kind != File && e.Kind != Directory || len(e.Xattrs) > maxXattrs:
		problem = fmt.Sprintf("has %d extended attributes", len(e.Xattrs))
	}
	bytes := 0
	for name, value := range e.Xattrs {
		if bytes += len(name) + len(value); !keptXattr(name) || len(name) > maxName || strings.ContainsRune(name, 0) || bytes > maxXattrBytes {
			problem = fmt.Sprintf("has the extended attribute %.64q", name)
		}
	}
	end := int64(0)
	for _, x := range e.extents {
		if x.offset < end || x.length <= 0 || x.length > e.Size-x.offset {
			problem = "has parts that overlap or are beyond its end"
			break
		}
		end = x.offset + x.length
	}
	if problem != "" {
		return fmt.Errorf("%.64q %s", e.Path, problem)
	}
	return nil
}

// follows returns how many bytes of a file follow in the archive.
func (e *Entry) follows() int64 {
	switch {
	case e.Kind != File || e.have:
		return 0
	case e.extents == nil:
		return e.Size
	}
	sum := int64(0)
	for _, x := range e.extents {
		sum += x.length
	}
	return sum
}

// header returns the tar header of an entry.
func (e *Entry) header() *tar.Header {
	h := &tar.Header{
		Typeflag: byte(e.Kind), Name: e.Path, Linkname: e.Link, Mode: int64(e.Mode), Uid: e.UID, Gid: e.GID,
		ModTime: e.ModTime, Size: e.follows(), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	if e.Kind == Directory {
		h.Name += "/"
	}
	for name, value := range e.Xattrs {
		h.PAXRecords[recordXattr+name] = value
	}
	if e.have {
		h.PAXRecords[recordHave] = "1"
	}
	if e.have || e.extents != nil {
		h.PAXRecords[recordSize] = strconv.FormatInt(e.Size, 10)
	}
	if e.extents != nil {
		var text strings.Builder
		for _, x := range e.extents {
			fmt.Fprintf(&text, "%d,%d;", x.offset, x.length)
		}
		h.PAXRecords[recordExtents] = text.String()
	}
	return h
}

// entryOf returns the entry of a tar header, and checks it.
func entryOf(h *tar.Header) (*Entry, error) {
	e := &Entry{
		Path: strings.TrimSuffix(h.Name, "/"), Kind: Kind(h.Typeflag), Link: h.Linkname,
		UID: h.Uid, GID: h.Gid, ModTime: h.ModTime, Size: h.Size,
	}
	switch e.Kind {
	case Directory, File, Symlink, HardLink, FIFO:
	default:
		return nil, fmt.Errorf("%.64q is of the unknown kind %q", h.Name, h.Typeflag)
	}
	if h.Mode < 0 || h.Mode > 0o7777 {
		return nil, fmt.Errorf("%.64q has mode %o", h.Name, h.Mode)
	}
	e.Mode = uint32(h.Mode)
	for name, value := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return nil, fmt.Errorf("%.64q has parts that another program wrote", h.Name)
		}
		if name, ok := strings.CutPrefix(name, recordXattr); ok {
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = value
		}
	}
	e.have = h.PAXRecords[recordHave] != ""
	if text, ok := h.PAXRecords[recordSize]; ok {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.64q has a malformed size", h.Name)
		}
		e.Size = size
	}
	if text, ok := h.PAXRecords[recordExtents]; ok {
		extents, err := parseExtents(text)
		if err != nil {
			return nil, fmt.Errorf("%.64q: %w", h.Name, err)
		}
		e.extents = extents
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	if h.Size != e.follows() {
		return nil, fmt.Errorf("%.64q has %d bytes in the archive, want %d", h.Name, h.Size, e.follows())
	}
	return e, nil
}

func parseExtents(text string) ([]extent, error) {
	extents := []extent{}
	for text != "" {
		if len(extents) == maxExtents {
			return nil, fmt.Errorf("more than %d parts", maxExtents)
		}
		var part string
		part, text, _ = strings.Cut(text, ";")
		offset, length, _ := strings.Cut(part, ",")
		o, err := strconv.ParseInt(offset, 10, 64)
		l, err2 := strconv.ParseInt(length, 10, 64)
		if err := errors.Join(err, err2); err != nil || o < 0 || l <= 0 {
			return nil, errors.New("malformed parts")
		}
		extents = append(extents, extent{o, l})
	}
	return extents, nil
}

// text returns an entry as digests have it: everything except how it is stored. A hard link has
// only its path and that of its file.
func (e *Entry) text(content []byte) []byte {
	var b []byte
	field := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	b = append(b, byte(e.Kind))
	field(e.Path)
	field(e.Link)
	if e.Kind == HardLink {
		return b
	}
	if e.Kind != Symlink { // the mode of a symbolic link has no meaning
		number(int64(e.Mode))
	}
	number(int64(e.UID))
	number(int64(e.GID))
	number(e.ModTime.Unix())
	number(int64(e.ModTime.Nanosecond()))
	number(e.Size)
	number(int64(len(e.Xattrs)))
	for _, name := range slices.Sorted(maps.Keys(e.Xattrs)) {
		field(name)
		field(e.Xattrs[name])
	}
	field(string(content))
	return b
}

// archive reads and checks entries. After the entry of a file, the file's data can be read from it.
type archive struct {
	*tar.Reader
	count int
}

func readArchive(r io.Reader) *archive { return &archive{Reader: tar.NewReader(r)} }

// next returns the next entry, or io.EOF at the end.
func (a *archive) next() (*Entry, error) {
	h, err := a.Next()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	if a.count++; a.count > maxEntries {
		return nil, fmt.Errorf("the archive has more than %d entries", maxEntries)
	}
	return entryOf(h)
}

// key is a hash of a path, or of a file's identity.
type key [16]byte

// identity is a hash of all that is known about a file without reading it. Equal files of source
// and destination are taken to be the same until both are read.
func (e *Entry) identity() key {
	plain := *e
	plain.Xattrs = nil
	return hashed(string(plain.text(nil)))
}

func hashed(text string) key {
	sum := sha256.Sum256([]byte(text))
	return key(sum[:16])
}
