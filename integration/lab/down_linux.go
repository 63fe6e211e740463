package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// downMost bounds how long Down waits for the kernel to let go.
const downMost = 2 * time.Minute

// Down removes the lab called name, in any state: a lab that runs, one that is half made, or the
// leftovers of a crash. If it does not exist, that is not an error.
func Down(ctx context.Context, name string) error {
	if name == "" {
		name = DefaultName
	}
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name %q is malformed", name)
	}
	if err := remove(ctx, name); err != nil {
		return err
	}
	if err := os.Remove(upLockFile(name)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return lastOneOut(ctx)
}

// remove ends a lab's processes and removes what they leave.
func remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, downMost, fmt.Errorf("not gone within %v", downMost))
	defer cancel()
	if err := killMarked(ctx, name); err != nil {
		return err
	}
	dir := labDir(name)
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	if os.Getuid() == 0 {
		if err := removeCgroups(ctx, func(n string) bool { return strings.HasPrefix(n, cgroupMark(name)) }); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// lastOneOut puts the machine back as it was if no lab is left.
func lastOneOut(ctx context.Context) error {
	base := baseDir()
	if _, err := os.Stat(base); os.IsNotExist(err) {
		return nil
	}
	unlock, err := lockFile(ctx, filepath.Join(base, lockName), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return nil
		}
	}
	if err := restoreSysctls(filepath.Join(base, kernelFile)); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(base, lockName)); err != nil {
		return err
	}
	if err := os.Remove(base); err != nil && !errors.Is(err, unix.ENOTEMPTY) { // another process makes a lab just now
		return err
	}
	return nil
}

// leftovers returns what exists of a lab whose daemon does not respond.
func leftovers(name string) ([]string, error) {
	var found []string
	pids, err := markedProcesses(name)
	if err != nil {
		return nil, err
	}
	for _, p := range pids {
		found = append(found, fmt.Sprintf("process %d", p))
	}
	if _, err := os.Stat(labDir(name)); err == nil {
		found = append(found, labDir(name))
	}
	cgroups, err := findCgroups(func(n string) bool { return strings.HasPrefix(n, cgroupMark(name)) })
	if err != nil {
		return nil, err
	}
	for _, c := range cgroups {
		found = append(found, "cgroup "+c)
	}
	mounts, err := mountsBelow(labDir(name))
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		found = append(found, "mount "+m)
	}
	return found, nil
}
