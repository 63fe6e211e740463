package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Names of the images that every node of the lab has.
const (
	PauseImage   = "lab.entente.dev/pause:v1"
	CoreDNSImage = "lab.entente.dev/coredns:" + coreDNSVersion
	// ToolImage has one static binary, /tool: a web server by default, and a
	// DNS and HTTP client, an echo server and a sleeper as subcommands.
	ToolImage = "lab.entente.dev/tool:v1"
)

// Images of programs that no node has by itself.
const (
	MetricsServerImage = "lab.entente.dev/metrics-server:v0.9.0"
	TraefikImage       = "lab.entente.dev/traefik:v3.7.13"
	KueueImage         = "lab.entente.dev/kueue:v0.17.0"
)

// MetricsServer makes MetricsServerImage in dir, for Load, and returns the path of the
// archive. metrics-server is built the first time, which takes minutes.
func MetricsServer(ctx context.Context, dir string, progress func(string)) (archive string, err error) {
	_, archive, err = buildImage(ctx, dir, progress, metricsServerComponent(), image{
		name: MetricsServerImage, path: "metrics-server", user: "65532:65532", ports: []string{"10250/tcp"},
	})
	return archive, err
}

// Traefik makes TraefikImage, as MetricsServer does its own, and returns the files with the definitions
// of the Gateway API, too.
func Traefik(ctx context.Context, dir string, progress func(string)) (archive string, crds []string, err error) {
	c := traefikComponent()
	bins, archive, err := buildImage(ctx, dir, progress, c, image{name: TraefikImage, path: "traefik", user: "65532:65532"})
	for _, file := range gatewayKinds() {
		crds = append(crds, bins.Path(c.name, file))
	}
	return archive, crds, err
}

// Kueue makes KueueImage, as MetricsServer does its own, and returns the folder of Kueue's chart, too.
func Kueue(ctx context.Context, dir string, progress func(string)) (archive, chart string, err error) {
	c := kueueComponent()
	bins, archive, err := buildImage(ctx, dir, progress, c, image{name: KueueImage, path: "manager", user: "65532:65532"})
	return archive, bins.Path(c.name, "kueue"), err
}

// buildImage builds a component and makes an image of its program of im's path.
func buildImage(ctx context.Context, dir string, progress func(string), c component, im image) (bins Binaries, archive string, err error) {
	if bins, err = buildComponents(ctx, []component{c}, progress); err != nil {
		return nil, "", err
	}
	im.binary = bins.Path(c.name, im.path)
	files, err := writeImages(dir, []image{im})
	if err != nil {
		return nil, "", err
	}
	return bins, files[0], nil
}

// image is one image made of a single static binary.
type image struct {
	name   string // reference with tag
	binary string // path of the binary
	path   string // where it is in the image, without the slash
	user   string
	ports  []string
	links  []string // other names of the binary
}

// labImages lists the images that each node is given.
func labImages(b Binaries) []image {
	return []image{
		{name: PauseImage, binary: b.Path("image", "pause"), path: "pause", user: "65535:65535"},
		{name: CoreDNSImage, binary: b.Path("coredns", "coredns"), path: "coredns", user: "65532:65532"},
		{name: ToolImage, binary: b.Path("image", "tool"), path: "tool", user: "65532:65532", ports: []string{"8080/tcp"}, links: []string{"tar"}},
	}
}

// writeImages writes the lab's images as archives into dir and returns their
// names. The same binaries give the same archives.
func writeImages(dir string, images []image) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, im := range images {
		b, err := im.archive()
		if err != nil {
			return nil, fmt.Errorf("make image %s: %w", im.name, err)
		}
		f := filepath.Join(dir, im.path+".tar")
		if err := os.WriteFile(f, b, 0o644); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// archive renders the image in the format of docker save, which containerd
// imports: a manifest, a configuration and one layer.
func (im image) archive() ([]byte, error) {
	binary, err := os.ReadFile(im.binary)
	if err != nil {
		return nil, err
	}
	files := []tarFile{
		{name: "tmp/", mode: 0o1777},
		{name: im.path, mode: 0o755, data: binary},
	}
	for _, name := range im.links {
		files = append(files, tarFile{name: name, mode: 0o777, link: im.path})
	}
	layer, err := tarFiles(files)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(layer)
	exposed := map[string]struct{}{}
	for _, p := range im.ports {
		exposed[p] = struct{}{}
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      time.Unix(0, 0).UTC(),
		"config": map[string]any{
			"Entrypoint":   []string{"/" + im.path},
			"Env":          []string{"PATH=/"},
			"User":         im.user,
			"WorkingDir":   "/",
			"ExposedPorts": exposed,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	if err != nil {
		return nil, err
	}
	configDigest := sha256.Sum256(config)
	configName := hex.EncodeToString(configDigest[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{im.name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	return tarFiles([]tarFile{
		{name: configName, mode: 0o644, data: config},
		{name: "layer.tar", mode: 0o644, data: layer},
		{name: "manifest.json", mode: 0o644, data: manifest},
	})
}

type tarFile struct {
	name string // a folder if it ends in a slash
	mode int64
	data []byte
	link string // to what it is a symbolic link, if it is one
}

func tarFiles(files []tarFile) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		switch {
		case f.name[len(f.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
