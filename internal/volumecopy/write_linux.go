package volumecopy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// destination is the volume that is written.
type destination struct {
	root *os.Root
	path string
	// own is the name of the directory at its root that identifies the copy.
	own string
}

// openDestination opens the volume at a path for a copy. finished means that something else wrote
// to it: then it is only read.
func openDestination(at, id string) (d *destination, finished bool, err error) {
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, false, fmt.Errorf("open the volume: %w", err)
	}
	d = &destination{root: root, path: at, own: marker + id}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Close())
		}
	}()
	dir, err := root.Open(".")
	if err != nil {
		return nil, false, fmt.Errorf("open the volume: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only read
	names, err := dir.Readdirnames(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, fmt.Errorf("read the volume: %w", err)
	}
	if info, err := root.Lstat(d.own); err == nil && info.IsDir() {
		return d, false, nil
	}
	for _, name := range names {
		if name != lostAndFound {
			return d, true, nil
		}
	}
	if err := root.Mkdir(d.own, 0o700); err != nil {
		return nil, false, fmt.Errorf("write to the volume: %w", err)
	}
	return d, false, nil
}

// has returns the identities of all files.
func (d *destination) has(ctx context.Context) ([]key, error) {
	var keys []key
	w := walker{skips: true, plain: true, visit: func(e *Entry, _ *os.File) error {
		if e.Kind == File {
			keys = append(keys, e.identity())
		}
		return nil
	}}
	if err := w.walk(ctx, d.path); err != nil {
		return nil, err
	}
	return keys, nil
}

// filling is one pass of writing a destination.
type filling struct {
	*destination
	// seen has what was written, by the hashes of paths.
	seen map[key]Kind
	// directories get their metadata last, since it changes while they are filled.
	directories []*Entry
	count       func(files, bytes int64)
}

// fill makes a volume equal to an archive.
func (d *destination) fill(ctx context.Context, from io.Reader, count func(files, bytes int64)) error {
	f := &filling{destination: d, seen: map[key]Kind{}, count: count}
	a := readArchive(from)
	for {
		e, err := a.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = f.write(ctx, e, a)
		}
		if err != nil {
			return err
		}
	}
	if f.seen[hashed(".")] != Directory {
		return errors.New("the archive has no root")
	}
	if err := f.removeOthers(ctx); err != nil {
		return err
	}
	for _, e := range slices.Backward(f.directories) {
		if err := f.finishDirectory(e); err != nil {
			return err
		}
	}
	return nil
}

// sync flushes everything that was written to the disk.
func (d *destination) sync() error {
	dir, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("open the volume: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only read
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("write the volume to its disk: %w", err)
	}
	return nil
}

// write writes one entry. A directory precedes its contents, so no link is ever followed.
func (f *filling) write(ctx context.Context, e *Entry, data io.Reader) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if f.seen[hashed(e.Path)] != 0 {
		return fmt.Errorf("%.64q comes twice", e.Path)
	}
	if e.Path != "." && f.seen[hashed(path.Dir(e.Path))] != Directory {
		return fmt.Errorf("%.64q comes before its directory", e.Path)
	}
	if e.Kind == HardLink && f.seen[hashed(e.Link)] != File && f.seen[hashed(e.Link)] != Symlink && f.seen[hashed(e.Link)] != FIFO {
		return fmt.Errorf("%.64q comes before the file that it is another name of", e.Path)
	}
	if e.Path == lostAndFound || strings.HasPrefix(e.Path, lostAndFound+"/") {
		return fmt.Errorf("%.64q belongs to the file system", e.Path)
	}
	f.seen[hashed(e.Path)] = e.Kind
	var err error
	switch e.Kind {
	case Directory:
		err = f.directory(e)
	case File:
		err = f.file(e, data)
	default:
		err = f.other(e)
	}
	if err != nil {
		return fmt.Errorf("write %.64q: %w", e.Path, err)
	}
	f.count(1, 0)
	return nil
}

func (f *filling) directory(e *Entry) error {
	f.directories = append(f.directories, e)
	info, err := f.root.Lstat(e.Path)
	if err == nil && info.IsDir() {
		if e.Path == "." {
			return nil
		}
		return f.root.Chmod(e.Path, 0o700) // it has to be writable
	}
	if err == nil {
		err = f.root.RemoveAll(e.Path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return f.root.Mkdir(e.Path, 0o700)
}

// file writes a file under another name, and renames it when it is complete.
func (f *filling) file(e *Entry, data io.Reader) error {
	if e.have {
		info, err := f.root.Lstat(e.Path)
		if err == nil && (!info.Mode().IsRegular() || info.Size() != e.Size) {
			err = errors.New("it differs from the file that the other side expects")
		}
		return err
	}
	part := path.Join(f.own, "part")
	if err := f.root.RemoveAll(part); err != nil {
		return err
	}
	file, err := f.root.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.content(file, e, data)
	if err == nil {
		err = describe(file, e)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if info, err := f.root.Lstat(e.Path); err == nil && info.IsDir() {
		if err := f.root.RemoveAll(e.Path); err != nil {
			return err
		}
	}
	return f.root.Rename(part, e.Path)
}

// content writes the content of a file, and leaves out zeros.
func (f *filling) content(file *os.File, e *Entry, data io.Reader) error {
	if err := file.Truncate(e.Size); err != nil {
		return err
	}
	extents := e.extents
	if extents == nil && e.Size > 0 {
		extents = []extent{{0, e.Size}}
	}
	const block = 4 << 10
	buffer, zeros := make([]byte, 256<<10), make([]byte, block)
	for _, x := range extents {
		for at, end := x.offset, x.offset+x.length; at < end; {
			n, err := io.ReadFull(data, buffer[:min(int64(len(buffer)), end-at)])
			if err != nil {
				return fmt.Errorf("read the archive: %w", err)
			}
			for i := 0; i < n; i += block {
				piece := buffer[i:min(i+block, n)]
				if bytes.Equal(piece, zeros[:len(piece)]) {
					continue
				}
				if _, err := file.WriteAt(piece, at+int64(i)); err != nil {
					return err
				}
			}
			at += int64(n)
			f.count(0, int64(n))
		}
	}
	return nil
}

// other writes a link or a FIFO.
func (f *filling) other(e *Entry) error {
	if err := f.root.RemoveAll(e.Path); err != nil {
		return err
	}
	parent, err := f.root.Open(path.Dir(e.Path))
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // it was only read
	at, name := int(parent.Fd()), path.Base(e.Path)
	switch e.Kind {
	case HardLink:
		return f.root.Link(e.Link, e.Path)
	case Symlink:
		err = unix.Symlinkat(e.Link, at, name)
	default:
		err = unix.Mknodat(at, name, unix.S_IFIFO|0o600, 0)
	}
	if err == nil {
		err = own(e, func(uid, gid int) error { return unix.Fchownat(at, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW) })
	}
	if err == nil && e.Kind == FIFO {
		err = unix.Fchmodat(at, name, e.Mode, 0)
	}
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(at, name, times(e), unix.AT_SYMLINK_NOFOLLOW)
}

func times(e *Entry) []unix.Timespec {
	t := unix.Timespec{Sec: e.ModTime.Unix(), Nsec: int64(e.ModTime.Nanosecond())}
	return []unix.Timespec{t, t}
}

// own sets the owner of an entry, which only root can do if it is another one.
func own(e *Entry, chown func(uid, gid int) error) error {
	err := chown(e.UID, e.GID)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("it belongs to %d:%d: %w", e.UID, e.GID, err)
	}
	return err
}

// describe sets the metadata of an open file or directory. The owner comes first, as a change of it
// clears some of the rest.
func describe(file *os.File, e *Entry) error {
	fd := int(file.Fd())
	if err := own(e, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) }); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, e.Mode); err != nil {
		return err
	}
	before, err := xattrsOf(file)
	if err != nil {
		return err
	}
	for name := range before {
		if _, ok := e.Xattrs[name]; !ok {
			if err := unix.Fremovexattr(fd, name); err != nil {
				return fmt.Errorf("remove the extended attribute %s: %w", name, err)
			}
		}
	}
	for name, value := range e.Xattrs {
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return fmt.Errorf("set the extended attribute %s: %w", name, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o7777 != e.Mode { // an access list changes it
		if err := unix.Fchmod(fd, e.Mode); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times(e), 0)
}

func (f *filling) finishDirectory(e *Entry) error {
	dir, err := f.root.Open(e.Path)
	if err == nil {
		err = errors.Join(describe(dir, e), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("write %.64q: %w", e.Path, err)
	}
	return nil
}

// removeOthers removes everything that was not in the archive.
func (f *filling) removeOthers(ctx context.Context) error {
	var others []string
	w := walker{skips: true, plain: true, visit: func(e *Entry, _ *os.File) error {
		if f.seen[hashed(e.Path)] == 0 && f.seen[hashed(path.Dir(e.Path))] != 0 {
			others = append(others, e.Path)
		}
		return nil
	}}
	if err := w.walk(ctx, f.path); err != nil {
		return err
	}
	for _, other := range others {
		if err := f.root.RemoveAll(other); err != nil {
			return fmt.Errorf("remove %.64q: %w", other, err)
		}
	}
	return nil
}

// finish removes the marker of a copy from a volume, and restores the times of the root, which that changes.
// It can be repeated after it was interrupted.
func finish(volume, id, state string) error {
	if err := rememberRoot(volume, state); err != nil {
		return fmt.Errorf("remember the times of the volume: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(state, rootFile))
	if err != nil {
		return fmt.Errorf("read the times of the volume: %w", err)
	}
	var modified unix.Timespec
	if err := json.Unmarshal(text, &modified); err != nil {
		return fmt.Errorf("read the times of the volume: %w", err)
	}
	root, err := os.OpenRoot(volume)
	if err != nil {
		return fmt.Errorf("open the volume: %w", err)
	}
	defer root.Close() //nolint:errcheck // what matters was synced
	d := &destination{root: root, path: volume, own: marker + id}
	err = root.RemoveAll(d.own)
	if err == nil {
		err = unix.UtimesNanoAt(unix.AT_FDCWD, volume, []unix.Timespec{modified, modified}, 0)
	}
	if err != nil {
		return fmt.Errorf("remove the marker from the volume: %w", err)
	}
	return d.sync()
}

// rememberRoot writes the times of the root of a volume into the state, unless it did so before.
func rememberRoot(volume, state string) error {
	at := filepath.Join(state, rootFile)
	if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(volume, &st); err != nil {
		return err
	}
	text, err := json.Marshal(st.Mtim)
	if err != nil {
		return err
	}
	return replaceFile(at, text)
}
