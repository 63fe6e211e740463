package pods

import (
	"context"
	"path/filepath"
	"testing"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/images"
)

// registry is where Kubernetes' tests have their images. Nothing is pulled from there: the nodes
// have images of these names, which are made here of the same sources and of Debian's packages.
const registry = "registry.k8s.io/e2e-test-images/"

// packages are the packages of their distribution in the images of Kubernetes' tests.
var packages = []string{
	"bash", "bind9-dnsutils", "busybox-static", "curl", "iperf", "iproute2", "libc-bin", "netcat-openbsd", "nginx-light", "socat", "util-linux",
}

// accounts are those of Debian, and what the tests of supplementary groups expect of agnhost.
const (
	users = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`
	groups = `root:x:0:
daemon:x:1:
tty:x:5:
www-data:x:33:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
`
	nginxConfig = `worker_processes 1;
error_log /dev/stderr;
pid /run/nginx.pid;
events { worker_connections 64; }
http {
	access_log /dev/stdout;
	server {
		listen 80;
		listen [::]:80;
		root /usr/share/nginx/html;
	}
}
`
)

// loadImages gives all nodes the images of the suites.
func loadImages(ctx context.Context, t *testing.T, w *World, binaries string) {
	t.Helper()
	root, err := images.Debian(ctx, t.TempDir(), packages...)
	OK(t, err)
	base := images.NewLayer()
	// Of the shells that Debian has, bash alone hands on variables whose names it cannot say, such as data-1.
	base.Tree(root, images.Needless)
	base.Link("bin/sh", "bash")
	base.Applets(ctx, root, "sh")
	base.Link("bin/nc", "nc.openbsd")
	base.File("etc/passwd", 0o644, []byte(users))
	base.File("etc/group", 0o644, []byte(groups))
	base.File("etc/nginx/nginx.conf", 0o644, []byte(nginxConfig))
	base.File("usr/share/nginx/html/index.html", 0o644, []byte("<html><body>It works.</body></html>\n"))
	for _, dir := range []string{"tmp", "run", "uploads", "root", "var/tmp", "home/user-defined-in-image"} {
		base.Dir(dir, 0o1777)
	}
	agnhost := images.NewLayer()
	agnhost.Copy("agnhost", 0o755, filepath.Join(binaries, "agnhost"))
	agnhost.Link("agnhost-2", "agnhost")
	agnhost.Copy("localhost.crt", 0o644, filepath.Join(binaries, "localhost.crt"))
	agnhost.Copy("localhost.key", 0o644, filepath.Join(binaries, "localhost.key"))
	nautilus := images.NewLayer()
	nautilus.Copy("nautilus.jpg", 0o644, filepath.Join(binaries, "nautilus.jpg"))
	nautilus.Copy("data.json", 0o644, filepath.Join(binaries, "data.json"))
	nnp := images.NewLayer()
	nnp.Copy("usr/local/bin/nnp", 0o4755, filepath.Join(binaries, "nonewprivs"))

	plain, served := []*images.Layer{base}, []*images.Layer{base, agnhost}
	file := filepath.Join(t.TempDir(), "images.tar")
	OK(t, images.Save(file,
		images.Image{Names: []string{registry + "agnhost:2.55", registry + "agnhost:2.66.1"}, Layers: served, Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}},
		images.Image{Names: []string{"registry.k8s.io/pause:3.10.2"}, Layers: served, Entrypoint: []string{"/agnhost", "pause"}},
		// The images of the virtual-kubelet project's tests: any image that keeps running will do.
		images.Image{Names: []string{"docker.io/library/foo:latest", "docker.io/library/bar:latest", "docker.io/library/baz:latest"}, Layers: served, Entrypoint: []string{"/agnhost", "pause"}},
		images.Image{Names: []string{registry + "busybox:1.37.0-2", registry + "glibc-dns-testing:2.1.1"}, Layers: plain, Command: []string{"sh"}},
		images.Image{Names: []string{registry + "nonroot:1.5"}, Layers: plain, Command: []string{"sh"}, User: "1234"},
		images.Image{Names: []string{registry + "nginx:1.27.0-2", registry + "nginx:1.28.0-2"}, Layers: plain, Command: []string{"nginx", "-g", "daemon off;"}},
		images.Image{Names: []string{registry + "nautilus:1.8"}, Layers: append(served, nautilus), Entrypoint: []string{"/agnhost"}, Command: []string{"test-webserver"}},
		images.Image{Names: []string{registry + "nonewprivs:1.4"}, Layers: append(plain, nnp), Command: []string{"nnp"}},
	))
	_, err = w.Lab.Load(ctx, file)
	OK(t, err)
}
