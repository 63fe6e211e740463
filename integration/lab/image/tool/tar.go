package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tarFiles is as much of tar as `kubectl cp` uses: `tar cf - FILE` writes an archive of a file, and
// `tar -xmf - [-C DIR]` unpacks one of files and folders.
func tarFiles(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "cf" && args[1] == "-":
		return pack(args[2])
	case slices.Contains(args, "-xmf"):
		dir := "."
		if i := slices.Index(args, "-C"); i >= 0 && i+1 < len(args) {
			dir = args[i+1]
		}
		return unpack(dir)
	}
	return errors.New(usage)
}

func pack(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New(name + " is not a file")
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name = strings.TrimPrefix(name, "/")
	w := tar.NewWriter(os.Stdout)
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.Copy(w, file); err != nil {
		return err
	}
	return w.Close()
}

func unpack(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for r := tar.NewReader(os.Stdin); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(header.Name)
		if header.Typeflag == tar.TypeDir {
			if err := root.MkdirAll(name, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := root.Create(name)
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, r); err != nil { //nolint:gosec // an archive of no compression, by a test
			return errors.Join(err, file.Close())
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
}
