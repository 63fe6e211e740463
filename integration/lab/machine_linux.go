package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/integration/eventually"
)

const kernelFile = "kernel.json" // kernel settings as they were

// reapMost bounds how long the machine's first process is waited for.
const reapMost = 5 * time.Second

// Kernel limits that several clusters on one machine need, at least.
var kernelLimits = map[string]int{ //nolint:gochecknoglobals // a constant table
	"fs/inotify/max_user_instances": 4096,
	"fs/inotify/max_user_watches":   524288,
}

// raiseSysctls raises the kernel's limits and keeps their former values in file,
// unless an earlier lab did.
func raiseSysctls(file string) error {
	before := map[string]string{}
	if b, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(b, &before); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
	changed := map[string]string{}
	for k, want := range kernelLimits {
		b, err := os.ReadFile(filepath.Join("/proc/sys", k))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		value := strings.TrimSpace(string(b))
		if have, err := strconv.Atoi(value); err != nil || have >= want {
			continue
		}
		changed[k] = strconv.Itoa(want)
		if _, ok := before[k]; !ok {
			before[k] = value
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := writeJSON(file, before, 0o644); err != nil {
		return err
	}
	for k, v := range changed {
		if err := setSysctl(k, v); err != nil {
			return err
		}
	}
	return nil
}

// restoreSysctls puts the kernel's limits back.
func restoreSysctls(file string) error {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	before := map[string]string{}
	if err := json.Unmarshal(b, &before); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	for k, v := range before {
		if _, ours := kernelLimits[k]; !ours {
			continue
		}
		if err := setSysctl(k, v); err != nil {
			return err
		}
	}
	return os.Remove(file)
}

// hierarchies lists where cgroup file systems are mounted, by version.
func hierarchies() (v1, v2 []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		before, after, ok := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 1 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			v1 = append(v1, fields[4])
		case "cgroup2":
			v2 = append(v2, fields[4])
		}
	}
	return v1, v2, nil
}

// makeCgroup makes a cgroup in each hierarchy.
func makeCgroup(name string) error {
	v1, v2, err := hierarchies()
	if err != nil {
		return err
	}
	unified := len(v1) == 0
	for _, mount := range append(v1, v2...) {
		dir := filepath.Join(mount, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if unified {
			continue
		}
		// In version 1 a new cpuset is empty, and nothing can run in it.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(filepath.Join(mount, f))
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, f), b, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// findCgroups lists the cgroups at the top of any hierarchy whose name matches.
func findCgroups(match func(name string) bool) ([]string, error) {
	v1, v2, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, mount := range append(v1, v2...) {
		entries, err := os.ReadDir(mount)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && match(e.Name()) {
				found = append(found, filepath.Join(mount, e.Name()))
			}
		}
	}
	return found, nil
}

// removeCgroups removes cgroups with all below them; the kernel may need a
// moment to let go of the last process.
func removeCgroups(ctx context.Context, match func(name string) bool) error {
	var last error
	err := eventually.Poll(ctx, 50*time.Millisecond, func() bool {
		var dirs []string
		if dirs, last = findCgroups(match); last != nil || len(dirs) == 0 {
			return last == nil
		}
		for _, d := range dirs {
			var all []string
			_ = filepath.WalkDir(d, func(p string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					all = append(all, p)
				}
				return nil
			})
			slices.Reverse(all) // children before parents
			for _, p := range all {
				if err := unix.Rmdir(p); err != nil && !errors.Is(err, os.ErrNotExist) {
					last = fmt.Errorf("remove cgroup %s: %w", p, err)
				}
			}
		}
		return false
	})
	if err != nil {
		return errors.Join(last, err)
	}
	return nil
}

// markedProcesses lists the processes that carry a lab's mark, other than this
// one and those that started it.
func markedProcesses(name string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own := ancestors(os.Getpid())
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || own[pid] {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue // gone, or another user's
		}
		if slices.Contains(strings.Split(string(env), "\x00"), labMark(name)) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// ancestors is pid and the processes above it.
func ancestors(pid int) map[int]bool {
	all := map[int]bool{}
	for pid > 0 && !all[pid] {
		all[pid] = true
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		// The name, in parentheses, may contain anything.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 2 {
			break
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			break
		}
	}
	return all
}

// killMarked ends all processes of a lab and waits until they are gone.
func killMarked(ctx context.Context, name string) error {
	var pids []int
	killed := map[int]bool{}
	err := eventually.Poll(ctx, 50*time.Millisecond, func() bool {
		var err error
		if pids, err = markedProcesses(name); err != nil {
			return false
		}
		for _, pid := range pids {
			killed[pid] = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
	if err != nil {
		return fmt.Errorf("processes %v do not end: %w", pids, err)
	}
	// Dead, they keep their namespaces until their present parent reaps them. That is the machine's
	// first process, which we cannot hurry.
	reapCtx, cancel := context.WithTimeout(ctx, reapMost)
	defer cancel()
	_ = eventually.Poll(reapCtx, 20*time.Millisecond, func() bool {
		for pid := range killed {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return false
			}
		}
		return true
	})
	return nil
}

// mountsBelow lists the mount points in dir, deepest first.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			found = append(found, f[4])
		}
	}
	slices.Reverse(found)
	return found, nil
}
