package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// startDaemon starts the lab's daemon, in a network namespace of its own unless
// the lab is light, and waits until it serves.
func startDaemon(ctx context.Context, dir string, o Options) error {
	binary, err := labBinary(ctx)
	if err != nil {
		return err
	}
	logName := filepath.Join(dir, "log", "daemon.log")
	out, err := os.OpenFile(logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(binary, "daemon", dir) //nolint:noctx // it outlives this process
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), labMark(o.Name))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !o.Light {
		host, err := os.Open("/proc/self/ns/net")
		if err != nil {
			return err
		}
		defer func() { _ = host.Close() }()
		cmd.ExtraFiles = []*os.File{host}
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the lab's daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	waitCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !listens(waitCtx, filepath.Join(dir, socketFile)) {
		select {
		case err := <-ended:
			b, _ := os.ReadFile(logName)
			return fmt.Errorf("the lab's daemon ended: %w: %s", err, tail(string(b), 5))
		case <-waitCtx.Done():
			return fmt.Errorf("the lab's daemon does not answer; see %s", logName)
		case <-tick.C:
		}
	}
	return nil
}

// dieWithParent makes a child end when the thread that started it does.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// ownGroup keeps the terminal's signals from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
