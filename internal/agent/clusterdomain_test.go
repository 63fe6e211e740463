package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheClusterDomainIsThatOfAPod(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# a comment\nnameserver 192.0.2.1\nsearch lan shop.svc.k8s.example svc.k8s.example k8s.example\noptions ndots:5\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{"shop": "k8s.example", "other": ""} {
		if got, err := clusterDomain(file, namespace); got != want || err != nil {
			t.Errorf("the domain of a pod in %s: %q, %v; want %q", namespace, got, err, want)
		}
	}
	if _, err := clusterDomain(filepath.Join(t.TempDir(), "none"), "shop"); err == nil {
		t.Error("a file that is not there has a domain")
	}
}
