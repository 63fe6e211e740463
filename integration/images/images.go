// Package images makes container images of Debian's packages and of programs that were built
// here. The lab's nodes pull nothing; what tests run of others has to be made.
package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// Image is an image, under all of its names.
type Image struct {
	Names               []string
	Layers              []*Layer
	Entrypoint, Command []string
	// User is as in a Dockerfile; empty means root.
	User string
	// Env is added to PATH.
	Env []string
}

// Layer is files that images have. Add them in the order in which they are to be there.
type Layer struct {
	text   bytes.Buffer
	tar    *tar.Writer
	closed bool
	err    error
}

// NewLayer returns a Layer without files.
func NewLayer() *Layer {
	l := &Layer{}
	l.tar = tar.NewWriter(&l.text)
	return l
}

func (l *Layer) add(h *tar.Header, text []byte) {
	if l.err != nil {
		return
	}
	h.ModTime, h.Size = time.Unix(0, 0), int64(len(text))
	if l.err = l.tar.WriteHeader(h); l.err == nil {
		_, l.err = l.tar.Write(text)
	}
}

// File adds a file of root's.
func (l *Layer) File(path string, mode int64, text []byte) {
	l.add(&tar.Header{Name: path, Mode: mode, Typeflag: tar.TypeReg}, text)
}

// Dir adds a directory of root's.
func (l *Layer) Dir(path string, mode int64) {
	l.add(&tar.Header{Name: path + "/", Mode: mode, Typeflag: tar.TypeDir}, nil)
}

// Link adds a symbolic link.
func (l *Layer) Link(path, target string) {
	l.add(&tar.Header{Name: path, Linkname: target, Mode: 0o777, Typeflag: tar.TypeSymlink}, nil)
}

// Copy adds a file of this machine.
func (l *Layer) Copy(path string, mode int64, from string) {
	text, err := os.ReadFile(from)
	if err != nil && l.err == nil {
		l.err = err
		return
	}
	l.File(path, mode, text)
}

// Tree adds all that is in a folder of this machine, but for what skip says by its path there.
func (l *Layer) Tree(dir string, skip func(path string) bool) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		if skip(name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return l.entry(path, name, d)
	})
	if l.err == nil {
		l.err = err
	}
}

// entry adds one file, folder or link. Others are left out: there are devices in no package.
func (l *Layer) entry(path, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	// The bits of tar.Header beyond permissions are those of FileInfoHeader: setuid, sticky.
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		l.Dir(name, header.Mode)
	case info.Mode().IsRegular():
		l.Copy(name, header.Mode, path)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		l.Link(name, target)
	}
	return l.err
}

// archive ends the layer and returns it, and its digest.
func (l *Layer) archive() (text []byte, digest string, err error) {
	if l.err == nil && !l.closed {
		l.closed, l.err = true, l.tar.Close()
	}
	sum := sha256.Sum256(l.text.Bytes())
	return l.text.Bytes(), hex.EncodeToString(sum[:]), l.err
}

// Save writes images to a file, as docker save does, which containerd imports. A layer of several
// is there once.
func Save(file string, all ...Image) error {
	type entry struct {
		Config           string
		RepoTags, Layers []string
	}
	var manifest []entry
	files := map[string][]byte{}
	for _, im := range all {
		e := entry{RepoTags: im.Names}
		var digests []string
		for _, l := range im.Layers {
			text, digest, err := l.archive()
			if err != nil {
				return fmt.Errorf("make image %s: %w", im.Names[0], err)
			}
			name := digest + ".tar"
			files[name] = text
			e.Layers, digests = append(e.Layers, name), append(digests, "sha256:"+digest)
		}
		config, err := im.config(digests)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(config)
		e.Config = hex.EncodeToString(sum[:]) + ".json"
		files[e.Config] = config
		manifest = append(manifest, e)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	files["manifest.json"] = text
	return write(file, files)
}

// path is where programs of Debian are, and those that are built here.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"

func (im Image) config(digests []string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Unix(0, 0).UTC(),
		"config": map[string]any{
			"Entrypoint": im.Entrypoint, "Cmd": im.Command, "User": im.User, "WorkingDir": "/",
			"Env": append([]string{path}, im.Env...),
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
}

func write(file string, files map[string][]byte) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	w := tar.NewWriter(f)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}
