package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program builds a small static program.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"here\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binary, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

func testConfig(t *testing.T, binary string) config {
	t.Helper()
	return config{
		binary: binary, output: filepath.Join(t.TempDir(), "new", "image.tar"),
		tag: "entente/entente:1.2.3", version: "1.2.3", arch: runtime.GOARCH,
	}
}

func TestImageHoldsTheBinaryAndRunsItAsNobody(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, program(t))
	if err := write(cfg); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(cfg.tag)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(cfg.output, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	type run struct {
		User, OS, Arch string
		Entrypoint     []string
		Version        string
	}
	want := run{User: "65532:65532", OS: "linux", Arch: runtime.GOARCH, Entrypoint: []string{"/entented"}, Version: "1.2.3"}
	got := run{file.Config.User, file.OS, file.Architecture, file.Config.Entrypoint, file.Config.Labels["org.opencontainers.image.version"]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("how it runs (-want +got):\n%s", diff)
	}

	binary, err := os.ReadFile(cfg.binary)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{"entented": 0o755, "etc": 0o755, "etc/group": 0o644, "etc/passwd": 0o644, "tmp": 0o1777}
	found := content(t, img)
	gotModes := map[string]int64{}
	for name, e := range found {
		gotModes[name] = e.mode
	}
	if diff := cmp.Diff(modes, gotModes); diff != "" {
		t.Errorf("files and modes (-want +got):\n%s", diff)
	}
	if !bytes.Equal(found["entented"].data, binary) {
		t.Error("the file in the image is not the binary")
	}
}

type entry struct {
	mode int64
	data []byte
}

func content(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	found := map[string]entry{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch()) || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: time %v, owner %d:%d; want the epoch and root", h.Name, h.ModTime, h.Uid, h.Gid)
		}
		found[h.Name] = entry{h.Mode, data}
	}
}

func TestSameBinaryGivesSameBytes(t *testing.T) {
	t.Parallel()
	binary := program(t)
	var archives [2][]byte
	for i := range archives {
		cfg := testConfig(t, binary)
		if err := write(cfg); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(cfg.output); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds of one binary differ")
	}
}

func TestInvalidImageArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := program(t)
	for name, c := range map[string]struct {
		change func(*config)
		want   string
	}{
		"a script":                {change: func(c *config) { c.binary = text }, want: "not a Linux binary"},
		"no file":                 {change: func(c *config) { c.binary = filepath.Join(text, "none") }, want: "none"},
		"a dynamic binary":        {change: func(c *config) { c.binary = dynamic(t) }, want: "not static"},
		"a name without a tag":    {change: func(c *config) { c.tag = "entente/entente" }, want: "image name"},
		"a name that no one has":  {change: func(c *config) { c.tag = "Entente:!" }, want: "image name"},
		"a folder for an archive": {change: func(c *config) { c.output = filepath.Join(text, "image.tar") }, want: "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, good)
			c.change(&cfg)
			err := write(cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if _, err := os.Stat(cfg.output); err == nil {
				t.Error("an archive was left behind")
			}
		})
	}
}

// dynamic finds a dynamically linked program of this machine.
func dynamic(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/bin/sh", "/usr/bin/env", "/bin/bash"} {
		if data, err := os.ReadFile(name); err == nil {
			if err := static(data); err != nil && strings.Contains(err.Error(), "not static") {
				return name
			}
		}
	}
	t.Skip("this machine has no dynamically linked shell")
	return ""
}
