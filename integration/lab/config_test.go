package lab

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readCertificate(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatalf("%s is not PEM", file)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificatesAreValidForTheirNames(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 1, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	dir, c := t.TempDir(), p.Clusters[0]
	if err := writePKI(dir, c); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(readCertificate(t, filepath.Join(dir, "ca.crt")))
	for _, tt := range []struct {
		file, host string
		ok         bool
	}{
		{"apiserver.crt", "127.0.0.1", true},
		{"apiserver.crt", c.Control().Address.String(), true},
		{"apiserver.crt", c.APIService.String(), true},
		{"apiserver.crt", "kubernetes.default.svc", true},
		{"apiserver.crt", c.Nodes[1].Address.String(), false},
		{"kubelet-serving-lab-1-2.crt", c.Nodes[1].Address.String(), true},
		{"kubelet-serving-lab-1-2.crt", c.Nodes[0].Address.String(), false},
	} {
		_, err := readCertificate(t, filepath.Join(dir, tt.file)).Verify(x509.VerifyOptions{Roots: roots, DNSName: tt.host})
		if (err == nil) != tt.ok {
			t.Errorf("%s for %s: %v", tt.file, tt.host, err)
		}
	}
	kubelet := readCertificate(t, filepath.Join(dir, "kubelet-lab-1-2.crt"))
	if kubelet.Subject.CommonName != "system:node:lab-1-2" || !cmp.Equal(kubelet.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("the kubelet is %s", kubelet.Subject)
	}
	if _, err := readCertificate(t, filepath.Join(dir, "front-proxy.crt")).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the cluster's authority vouches for the front proxy")
	}
	if fi, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the authority's key is %v, %v", fi.Mode(), err)
	}
}

func TestKubeconfigIsReadBackAsWritten(t *testing.T) {
	want := credentials{Server: "https://127.0.0.1:1", CA: []byte("ca"), Cert: []byte("cert"), Key: []byte("key")}
	b, err := kubeconfig("lab-1", "admin", want)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readKubeconfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("credentials (-want +got):\n%s", d)
	}
}

// A kubeconfig may have been edited by hand.
func FuzzReadKubeconfig(f *testing.F) {
	b, err := kubeconfig("c", "u", credentials{Server: "https://x", CA: []byte("a")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"clusters":[{}],"users":[{"user":{"client-key-data":"%"}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = readKubeconfig(file) // must not panic
	})
}

func TestWorkersGetNoKeysOfTheControlPlane(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 1, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	pki, c := t.TempDir(), p.Clusters[0]
	if err := writePKI(pki, c); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	s := nodeSpec{Lab: "lab", Cluster: c, Node: c.Nodes[1], Options: p.Options, Mounts: map[string]string{nodeBin + "/kube": "/x"}}
	if err := s.prepare(root, pki); err != nil {
		t.Fatal(err)
	}
	var got []string
	entries, err := os.ReadDir(filepath.Join(root, nodePKI))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if d := cmp.Diff([]string{"ca.crt", "kubelet-serving-lab-1-2.crt", "kubelet-serving-lab-1-2.key"}, got); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
	for _, f := range []string{nodeConfig + "/kubelet.json", nodeConfig + "/kube-proxy.json", "/etc/cni/net.d/10-lab.conflist", nodeSpecFile} {
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil || !json.Valid(b) {
			t.Errorf("%s is not JSON: %v", f, err)
		}
	}
	var names []string
	for _, p := range s.processes() {
		names = append(names, p.Name)
	}
	if d := cmp.Diff([]string{"containerd", "kubelet", "kube-proxy"}, names); d != "" {
		t.Errorf("processes (-want +got):\n%s", d)
	}
}

func TestLightControlPlaneListensOnLoopbackOnly(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 1, Light: true, FakeNodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := controlPlane{
		cluster: p.Clusters[0], kube: "/kube", pki: "/pki", data: "/data", bind: netip.MustParseAddr("127.0.0.1"),
		advertise: netip.MustParseAddr("192.0.2.1"), ports: nodePorts, kwok: "/kwok", stages: []string{"/a.yaml"},
	}
	var names []string
	for _, p := range c.processes() {
		names = append(names, p.Name)
		for _, a := range p.Args {
			listens := strings.HasPrefix(a, "--bind-address=") || strings.HasPrefix(a, "--listen-") || strings.HasPrefix(a, "--server-address=")
			if listens && !strings.Contains(a, "127.0.0.1") {
				t.Errorf("%s: %s", p.Name, a)
			}
		}
	}
	if d := cmp.Diff([]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}, names); d != "" {
		t.Errorf("processes (-want +got):\n%s", d)
	}
}

func TestAPIServerChecksKubeletsOnlyOnRequest(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		s := nodeSpec{Cluster: p.Clusters[0], Node: p.Clusters[0].Nodes[0], Options: Options{CheckKubelets: want}}
		for _, process := range s.processes() {
			if process.Name != "kube-apiserver" {
				continue
			}
			if got := slices.Contains(process.Args, "--kubelet-certificate-authority="+nodePKI+"/ca.crt"); got != want {
				t.Errorf("wanted %t; its arguments are %q", want, process.Args)
			}
		}
	}
}

func TestImageArchiveContainsTheBinary(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(binary, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := writeImages(t.TempDir(), []image{{name: "example.com/x:v1", binary: binary, path: "x", user: "1:1", ports: []string{"80/tcp"}}})
	if err != nil {
		t.Fatal(err)
	}
	archive := untar(t, mustRead(t, files[0]))
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(archive["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || !cmp.Equal(manifest[0].RepoTags, []string{"example.com/x:v1"}) {
		t.Fatalf("manifest is %+v", manifest)
	}
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
	}
	if err := json.Unmarshal(archive[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(config.Config.Entrypoint, []string{"/x"}) || config.Config.User != "1:1" {
		t.Errorf("configuration is %+v", config)
	}
	if layer := untar(t, archive[manifest[0].Layers[0]]); string(layer["x"]) != "program" {
		t.Errorf("layer is %v", layer)
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProgressIsReplayedToLateReaders(t *testing.T) {
	p := newProgress()
	p.say("one")
	events, wake := p.since(0)
	if len(events) != 1 || events[0].Text != "one" {
		t.Fatalf("events are %+v", events)
	}
	select {
	case <-wake:
		t.Fatal("woken without news")
	default:
	}
	p.done(errors.New("broken"))
	<-wake
	events, _ = p.since(1)
	if len(events) != 1 || !events[0].Done || events[0].Error != "broken" {
		t.Errorf("events are %+v", events)
	}
}
