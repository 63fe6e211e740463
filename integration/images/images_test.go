package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// read returns the files of an archive, and their headers.
func read(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	texts, headers := map[string][]byte{}, map[string]*tar.Header{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return texts, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		texts[h.Name], headers[h.Name] = text, h
	}
}

func TestSavedImagesShareTheirLayers(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/su": 0o755 | os.ModeSetuid, "usr/share/doc/su/README": 0o644} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("text of "+name), 0o600), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("su", filepath.Join(dir, "bin/sudo")); err != nil {
		t.Fatal(err)
	}
	base, more := NewLayer(), NewLayer()
	base.Tree(dir, Needless)
	more.File("etc/motd", 0o644, []byte("hello"))
	file := filepath.Join(t.TempDir(), "images.tar")
	err := Save(file, Image{Names: []string{"one:1", "uno:1"}, Layers: []*Layer{base}, Command: []string{"su"}},
		Image{Names: []string{"two:1"}, Layers: []*Layer{base, more}, User: "5", Env: []string{"A=b"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	texts, _ := read(t, f)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(texts["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 2 || len(texts) != 5 || manifest[0].Layers[0] != manifest[1].Layers[0] || !slices.Equal(manifest[0].RepoTags, []string{"one:1", "uno:1"}) {
		t.Fatalf("%d files, manifest %+v: want two images with one layer in common", len(texts), manifest)
	}
	files, headers := read(t, strings.NewReader(string(texts[manifest[0].Layers[0]])))
	if string(files["bin/su"]) != "text of bin/su" || headers["bin/su"].Mode&0o7777 != 0o4755 || headers["bin/sudo"].Linkname != "su" {
		t.Errorf("the layer has %v, %+v", files, headers["bin/su"])
	}
	if _, there := headers["usr/share/doc/su/README"]; there {
		t.Error("the layer has documentation")
	}
	if config := string(texts[manifest[1].Config]); !strings.Contains(config, `"User":"5"`) || !strings.Contains(config, `"A=b"`) || strings.Count(config, "sha256:") != 2 {
		t.Errorf("the second image is %s", config)
	}
}

func TestAnImageWithAnUnreadableFileIsNotSaved(t *testing.T) {
	l := NewLayer()
	l.Copy("a", 0o644, filepath.Join(t.TempDir(), "nothing"))
	l.File("b", 0o644, nil)
	if err := Save(filepath.Join(t.TempDir(), "out.tar"), Image{Names: []string{"a:1"}, Layers: []*Layer{l}}); err == nil {
		t.Error("an image without one of its files was saved")
	}
}
