package volumecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lostAndFound is a directory that some file systems create at their root, and that does not belong to the
// volume.
const lostAndFound = "lost+found"

// inode identifies a file, whatever its names.
type inode struct{ dev, ino uint64 }

// walker visits everything on a volume, directories before their contents, in the order of names.
// It does not follow symbolic links.
type walker struct {
	// visit is called with each entry; open is set for files and directories.
	visit func(e *Entry, open *os.File) error
	// skips leaves out names at the root that begin with marker, which otherwise are errors.
	skips bool
	// plain leaves out extended attributes.
	plain bool

	linked map[inode]string
	count  int
}

// walk visits all of the volume at root.
func (w *walker) walk(ctx context.Context, root string) error {
	w.linked = map[inode]string{}
	dir, err := os.OpenFile(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the volume: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only read
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("read the volume: %w", err)
	}
	return w.directory(ctx, dir, ".", &st)
}

func (w *walker) directory(ctx context.Context, dir *os.File, at string, st *unix.Stat_t) error {
	if err := w.entry(at, Directory, st, dir, ""); err != nil {
		return err
	}
	names, err := dir.Readdirnames(maxDirectory + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read directory %q: %w", at, err)
	}
	if len(names) > maxDirectory {
		return fmt.Errorf("directory %q has more than %d entries", at, maxDirectory)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if at == "." && (name == lostAndFound || w.skips && strings.HasPrefix(name, marker)) {
			continue
		}
		if err := w.child(ctx, dir, path.Join(at, name), name); err != nil {
			return err
		}
	}
	return nil
}

// child visits one name in a directory.
func (w *walker) child(ctx context.Context, dir *os.File, at, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // gone meanwhile; the digest shows whether that matters
		}
		return fmt.Errorf("read %q: %w", at, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := w.linked[id]; ok {
			return w.entry(at, HardLink, &st, nil, first)
		}
		w.linked[id] = at
	}
	switch kind {
	case unix.S_IFDIR:
		sub, err := openIn(dir, name, unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open %q: %w", at, err)
		}
		defer sub.Close() //nolint:errcheck // it was only read
		return w.directory(ctx, sub, at, &st)
	case unix.S_IFREG:
		file, err := openIn(dir, name, 0)
		if err != nil {
			return fmt.Errorf("open %q: %w", at, err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		return w.entry(at, File, &st, file, "")
	case unix.S_IFLNK:
		to := make([]byte, maxPath+1)
		n, err := unix.Readlinkat(int(dir.Fd()), name, to)
		if err != nil {
			return fmt.Errorf("read the link %q: %w", at, err)
		}
		return w.entry(at, Symlink, &st, nil, string(to[:n]))
	case unix.S_IFIFO:
		return w.entry(at, FIFO, &st, nil, "")
	case unix.S_IFSOCK:
		return nil // the process that listens on it creates it again
	}
	return fmt.Errorf("%q is a device, which is not copied: remove it", at)
}

func (w *walker) entry(at string, kind Kind, st *unix.Stat_t, open *os.File, link string) error {
	if w.count++; w.count > maxEntries {
		return fmt.Errorf("the volume has more than %d files, directories and links", maxEntries)
	}
	e := &Entry{
		Path: at, Kind: kind, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Link: link,
	}
	if kind == Symlink {
		e.Mode = 0o777
	}
	if kind == File {
		e.Size = st.Size
	}
	if open != nil && !w.plain {
		var err error
		if e.Xattrs, err = xattrsOf(open); err != nil {
			return fmt.Errorf("read the extended attributes of %q: %w", at, err)
		}
	}
	if err := e.check(); err != nil {
		return err
	}
	return w.visit(e, open)
}

// openIn opens a name in a directory, if it is not a link.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// xattrsOf returns the extended attributes of an open file that are copied.
func xattrsOf(f *os.File) (map[string]string, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil //nolint:nilnil // most have none
	}
	if err != nil {
		return nil, err
	}
	var kept map[string]string
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if !keptXattr(name) {
			continue
		}
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, err
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[name] = string(value[:n])
	}
	return kept, nil
}

// extentsOf returns the parts of a file that have data, or nil if all of it has.
func extentsOf(f *os.File, size int64, blocks int64) []extent {
	if blocks*512 >= size {
		return nil
	}
	for gap := int64(64 << 10); ; gap *= 4 {
		found := []extent{}
		for at := int64(0); at < size; {
			begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				break // zeros up to the end
			}
			if err != nil {
				return nil
			}
			end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
			if err != nil {
				return nil
			}
			begin, end = min(begin, size), min(end, size)
			if n := len(found); n > 0 && begin-(found[n-1].offset+found[n-1].length) < gap {
				found[n-1].length = end - found[n-1].offset
			} else if begin < end {
				found = append(found, extent{begin, end - begin})
			}
			if at = end; len(found) > maxExtents {
				break
			}
		}
		if len(found) <= maxExtents {
			return found
		}
	}
}

// digestBlock is the size of the blocks of a file in its digest; blocks of zeros are left out.
const digestBlock = 64 << 10

// digest reads a whole volume from its disk and computes its digest: the SHA-256 of all entries, in
// the order of a walk, each with the SHA-256 of its content.
func digest(ctx context.Context, root string, count func(bytes int64)) (Sum, error) {
	var sum Sum
	all := sha256.New()
	w := walker{skips: true, visit: func(e *Entry, open *os.File) error {
		var content []byte
		if e.Kind == File {
			var err error
			if content, err = contentDigest(ctx, open, count); err != nil {
				return fmt.Errorf("read %q: %w", e.Path, err)
			}
		}
		text := e.text(content)
		all.Write(binary.AppendUvarint(nil, uint64(len(text))))
		all.Write(text)
		sum.Files++
		sum.Bytes += e.Size
		return nil
	}}
	if err := w.walk(ctx, root); err != nil {
		return Sum{}, err
	}
	sum.Digest = "sha256:" + hex.EncodeToString(all.Sum(nil))
	return sum, nil
}

// contentDigest computes the digest of a file's content: of each block that is not all zeros, with
// its offset. So it does not depend on whether zeros are stored.
func contentDigest(ctx context.Context, f *os.File, count func(bytes int64)) ([]byte, error) {
	// What the kernel has in memory may differ from the disk.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	h := sha256.New()
	block, zeros := make([]byte, digestBlock), make([]byte, digestBlock)
	for at := int64(0); ; at += digestBlock {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA); err == nil {
			at = max(at, data/digestBlock*digestBlock)
		} else if errors.Is(err, unix.ENXIO) {
			return h.Sum(nil), nil
		}
		n, err := f.ReadAt(block, at)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(at)))
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
			h.Write(block[:n])
		}
		count(int64(n))
		if errors.Is(err, io.EOF) {
			return h.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
	}
}
