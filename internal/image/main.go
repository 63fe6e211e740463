// Command image puts one static binary into an OCI image that holds nothing
// else, and writes it as an archive that `ctr images import` and `docker load`
// take. The same binary gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// nobody is the user of the image's processes, unless the chart says otherwise:
// the number that distroless images use for "nonroot".
const nobody = 65532

// config says what to build.
type config struct {
	binary  string // path of the binary
	output  string // path of the archive
	tag     string // name:tag of the image
	version string // for the labels
	arch    string // Go's name of the architecture
}

func main() {
	var cfg config
	flag.StringVar(&cfg.binary, "binary", "", "the static `file` that is the image")
	flag.StringVar(&cfg.output, "output", "", "the archive `file` to write")
	flag.StringVar(&cfg.tag, "tag", "", "what the image is called, as `name:tag`")
	flag.StringVar(&cfg.version, "version", "", "the version, for the image's labels")
	flag.StringVar(&cfg.arch, "arch", "amd64", "the architecture of the binary")
	flag.Parse()
	if err := write(cfg); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write builds the image and puts it where it belongs, whole or not at all.
func write(cfg config) error {
	tag, err := name.NewTag(cfg.tag, name.WithDefaultTag(""))
	if err != nil {
		return fmt.Errorf("image name %q: %w", cfg.tag, err)
	}
	if tag.TagStr() == "" {
		return fmt.Errorf("image name %q has no tag", cfg.tag)
	}
	binary, err := os.ReadFile(cfg.binary)
	if err != nil {
		return err
	}
	if err := static(binary); err != nil {
		return fmt.Errorf("%s: %w", cfg.binary, err)
	}
	img, err := build(cfg, binary)
	if err != nil {
		return fmt.Errorf("build %s: %w", cfg.tag, err)
	}
	if err := os.MkdirAll(filepath.Dir(cfg.output), 0o755); err != nil {
		return err
	}
	tmp := cfg.output + ".tmp"
	if err := tarball.WriteToFile(tmp, tag, img); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", tmp, err), os.Remove(tmp))
	}
	return os.Rename(tmp, cfg.output)
}

// static refuses what would not start in an empty image.
func static(binary []byte) error {
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("not a Linux binary: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("not static: it asks for a dynamic loader (build it with CGO_ENABLED=0)")
		}
	}
	return nil
}

func build(cfg config, binary []byte) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return files(binary)
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{CreatedBy: "entented", Created: v1.Time{Time: epoch()}},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, configure(file.DeepCopy(), cfg))
}

// epoch is the time of everything in the image, so that it depends on its
// content alone.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

func configure(file *v1.ConfigFile, cfg config) *v1.ConfigFile {
	file.Architecture, file.OS = cfg.arch, "linux"
	file.Created = v1.Time{Time: epoch()}
	file.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", nobody, nobody),
		Entrypoint: []string{"/entented"},
		WorkingDir: "/",
		Env:        []string{"PATH=/"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "entente",
			"org.opencontainers.image.version":  cfg.version,
			"org.opencontainers.image.source":   "https://github.com/entente-dev/entente",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return file
}

// files is the image's one layer: the binary, a place for temporary files and
// the two user names that libraries look up.
func files(binary []byte) (io.ReadCloser, error) {
	passwd := fmt.Sprintf("root:x:0:0:root:/:/sbin/nologin\nentente:x:%d:%d:entente:/:/sbin/nologin\n", nobody, nobody)
	group := fmt.Sprintf("root:x:0:\nentente:x:%d:\n", nobody)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		header  tar.Header
		content []byte
	}{
		{header: tar.Header{Name: "entented", Typeflag: tar.TypeReg, Mode: 0o755}, content: binary},
		{header: tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}},
		{header: tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, content: []byte(group)},
		{header: tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, content: []byte(passwd)},
		{header: tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}},
	} {
		f.header.Size, f.header.ModTime, f.header.Format = int64(len(f.content)), epoch(), tar.FormatPAX
		if err := w.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&buf), nil
}
