package conformance

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/entente-dev/entente/integration/e2e"
)

// The images that the suite's pods are of: a server, and a client.
var images = []string{"docker.io/alpine/socat:1.7.4.4", "docker.io/nicolaka/netshoot:v0.15"}

// programs are those that the suite runs in them, from this machine.
var programs = []string{"sh", "socat", "grep", "tr", "awk", "tail", "sleep", "echo", "nc", "nslookup"}

// loadImages gives all nodes one image under both names: nothing is pulled.
func loadImages(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	if missing := missing(); len(missing) > 0 {
		t.Logf("%v are missing: installing socat, netcat-openbsd and bind9-dnsutils", missing)
		if out, err := exec.CommandContext(ctx, "apt-get", "install", "--yes", "--no-install-recommends", "socat", "netcat-openbsd", "bind9-dnsutils").CombinedOutput(); err != nil {
			t.Fatalf("install what the suite's pods run: %v\n%s", err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "programs.tar")
	text, err := archive(ctx)
	OK(t, err)
	OK(t, os.WriteFile(file, text, 0o600))
	_, err = w.Lab.Load(ctx, file)
	OK(t, err)
}

func missing() (out []string) {
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			out = append(out, name)
		}
	}
	return out
}

// archive is an image with the programs and the libraries that they need.
func archive(ctx context.Context) ([]byte, error) {
	files := map[string]string{}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", name, err)
		}
		files["bin/"+name] = path
		out, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			continue // it is static
		}
		for field := range strings.FieldsSeq(string(out)) {
			if name, absolute := strings.CutPrefix(field, "/"); absolute {
				files[name] = field
			}
		}
	}
	layer, err := layerOf(files)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Unix(0, 0).UTC(),
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": images, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		text []byte
	}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := add(w, f.name, 0o644, f.text); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func layerOf(files map[string]string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}); err != nil {
		return nil, err
	}
	for name, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := add(w, name, 0o755, text); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func add(w *tar.Writer, name string, mode int64, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}
