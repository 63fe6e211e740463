package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernelSettings are settings of the whole machine that a kubelet changes. In a
// node they are files of its own, so that the machine keeps what it has.
var kernelSettings = []string{ //nolint:gochecknoglobals // a constant list
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// runNodeInit is PID 1 of a node. It was started in new namespaces with file 3
// a pipe that closes once the node has its network interface. It makes the
// node's file system, starts the supervisor and reaps.
func runNodeInit(ctx context.Context, root string) error {
	uplink := os.NewFile(3, "uplink")
	if _, err := io.Copy(io.Discard, uplink); err != nil {
		return fmt.Errorf("wait for the network interface: %w", err)
	}
	_ = uplink.Close()
	var spec nodeSpec
	b, err := os.ReadFile(filepath.Join(root, nodeSpecFile))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read the node's description: %w", err)
	}
	if err := enterRoot(root, spec); err != nil {
		return fmt.Errorf("make the node's file system: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Node.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := nodeNetwork(ctx, spec); err != nil {
		return fmt.Errorf("set up the node's network: %w", err)
	}
	// /proc/self/exe still names the lab's own binary, which is outside of
	// this root but open.
	cmd := exec.Command("/proc/self/exe", "node-supervise") //nolint:noctx // reap waits for its end
	cmd.Env = []string{nodePath, "HOME=/root", labMark(spec.Lab)}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	return reap(cmd.Process.Pid)
}

// reap waits for all children, as PID 1 has to, until the one called main ends.
func reap(main int) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for children: %w", err)
		case pid == main:
			return fmt.Errorf("supervisor ended: status %d", ws)
		}
	}
}

// enterRoot makes root the file system of this mount namespace: the machine's
// programs read-only, everything else the node's own.
func enterRoot(root string, spec nodeSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := bind(root, root, false); err != nil {
		return err
	}
	for _, d := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr"} {
		if err := share(root, d); err != nil {
			return err
		}
	}
	for _, d := range []string{"/etc/ssl", "/etc/alternatives", "/etc/iproute2"} {
		if _, err := os.Stat(d); err == nil {
			if err := bind(d, filepath.Join(root, d), true); err != nil {
				return err
			}
		}
	}
	for in, out := range spec.Mounts {
		if err := bind(out, filepath.Join(root, in), true); err != nil {
			return err
		}
	}
	if err := mountKernel(root); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return err
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC { // containerd's overlays need another file system below
		if err := unix.Mount("tmpfs", filepath.Join(root, "var/lib/containerd"), "tmpfs", 0, "mode=711"); err != nil {
			return fmt.Errorf("mount tmpfs for containerd: %w", err)
		}
	}
	if err := unix.PivotRoot(root, filepath.Join(root, "old")); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	// Pods' mounts travel between kubelet and containerd through this.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// mountKernel mounts /proc, /sys, /dev, /run and /tmp of the node.
func mountKernel(root string) error {
	at := func(p string) string { return filepath.Join(root, p) }
	for _, m := range []struct{ source, target, kind, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"tmpfs", "/run", "tmpfs", "mode=755"},
		{"tmpfs", "/tmp", "tmpfs", "mode=1777"},
	} {
		if err := unix.Mount(m.source, at(m.target), m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Mount("/sys/fs/cgroup", at("/sys/fs/cgroup"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind cgroups: %w", err)
	}
	if err := unix.Mount("/dev", at("/dev"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind devices: %w", err)
	}
	for _, d := range []string{"/run/lock", "/run/lab", "/run/lab/settings"} {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			return err
		}
	}
	for _, k := range kernelSettings {
		b, err := os.ReadFile(filepath.Join("/proc/sys", k))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		own := at(filepath.Join("/run/lab/settings", strings.ReplaceAll(k, "/", ".")))
		if err := os.WriteFile(own, b, 0o644); err != nil {
			return err
		}
		if err := bind(own, at(filepath.Join("/proc/sys", k)), false); err != nil {
			return err
		}
	}
	return nil
}

// share shows one top folder of the machine in root, as it is there: a link or
// a folder, read-only.
func share(root, dir string) error {
	to := filepath.Join(root, dir)
	fi, err := os.Lstat(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSymlink != 0 {
		link, err := os.Readlink(dir)
		if err != nil {
			return err
		}
		if err := os.Symlink(link, to); err != nil && !os.IsExist(err) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return bind(dir, to, true)
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", to, err)
	}
	return nil
}

// runNodeSupervise runs the node's components until it is killed.
func runNodeSupervise(ctx context.Context) error {
	var spec nodeSpec
	b, err := os.ReadFile(nodeSpecFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read the node's description: %w", err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	steps := []step{{
		name:  "import images",
		after: []condition{{Socket: containerd}},
		do:    func(ctx context.Context) error { return importImages(ctx, spec.Images) },
	}}
	if spec.Options.CNI == FlannelCNI {
		steps = append(steps, step{
			name:  "configure flannel's pods",
			after: []condition{{File: flannelSubnet}},
			do:    func(context.Context) error { return configureFlannel() },
		})
	}
	s := &supervisor{
		logDir:    nodeLogs,
		mark:      labMark(spec.Lab),
		logger:    logger,
		processes: spec.processes(),
		steps:     steps,
		changed: func(states []Process) {
			if err := writeJSON(nodeStatus, states, 0o644); err != nil {
				logger.Warn("status not written", "err", err)
			}
		},
	}
	return s.run(ctx)
}

// configureFlannel writes the CNI configuration: from then on the node is ready for pods.
func configureFlannel() error {
	env, err := os.ReadFile(flannelSubnet)
	if err != nil {
		return err
	}
	config, err := flannelCNI(string(env))
	if err != nil {
		return fmt.Errorf("read %s: %w", flannelSubnet, err)
	}
	return writeJSON(cniConfigFile, config, 0o644)
}

// importImages gives containerd the lab's images, once in a node's life.
func importImages(ctx context.Context, files []string) error {
	const done = "/var/lib/containerd/lab-images-imported"
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	for _, f := range files {
		out, err := exec.CommandContext(ctx, nodeBin+"/node/ctr", "--address", containerd, "--namespace", "k8s.io", "images", "import", f).CombinedOutput()
		if err != nil {
			return fmt.Errorf("import %s: %w: %s", f, err, tail(string(out), 5))
		}
	}
	return os.WriteFile(done, nil, 0o644)
}
