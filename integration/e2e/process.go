package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// The parts of Entente that run as processes, by their command.
const (
	PartAgent     = "agent"
	PartNode      = "node"
	PartWireGuard = "wireguard"
)

// ProcessOf finds the process of a part in a pod, by its command line and what the
// chart puts into its environment. It asks no API server.
func ProcessOf(pod *corev1.Pod, part string) (int, error) {
	found, err := processes(func(args []string, file string) bool {
		return filepath.Base(args[0]) == "entented" && args[1] == part && hasEnvironment(file, "POD_NAME="+pod.Name)
	})
	if err != nil {
		return 0, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	return 0, fmt.Errorf("no process `entented %s` of pod %s", part, pod.Name)
}

// Process is the process of a part of Entente on this cluster's node.
func (s *Side) Process(ctx context.Context, part string) (int, error) {
	find := s.FabricPod
	if part == PartAgent {
		find = s.AgentPod
	}
	pod, err := find(ctx)
	if err != nil {
		return 0, err
	}
	return ProcessOf(pod, part)
}

// Memory is the resident memory of a part, in bytes.
func (s *Side) Memory(ctx context.Context, part string) (uint64, error) {
	pid, err := s.Process(ctx, part)
	if err != nil {
		return 0, err
	}
	return memory(pid)
}

// Kill kills the process of a part, without warning; the kubelet starts it again.
func (s *Side) Kill(ctx context.Context, part string) error {
	pid, err := s.Process(ctx, part)
	if err != nil {
		return err
	}
	return KillProcess(pid)
}

// Freeze stops the process of a part, as if it hung, until thaw is called.
func (s *Side) Freeze(ctx context.Context, part string) (thaw func() error, err error) {
	pid, err := s.Process(ctx, part)
	if err != nil {
		return nil, err
	}
	return FreezeProcess(pid)
}

// FreezePod is Freeze for the agent in a pod.
func FreezePod(pod *corev1.Pod) (thaw func() error, err error) {
	pid, err := ProcessOf(pod, PartAgent)
	if err != nil {
		return nil, err
	}
	return FreezeProcess(pid)
}

// Running is the processes of a part of Entente on this cluster's node. It asks no API server.
func (s *Side) Running(part string) ([]int, error) {
	return processes(func(args []string, file string) bool {
		return filepath.Base(args[0]) == "entented" && args[1] == part && hasEnvironment(file, "NODE_NAME="+s.Node())
	})
}

// Component is the process of a component of Kubernetes, such as kubelet, on this cluster's node.
func (s *Side) Component(ctx context.Context, name string) (int, error) {
	first, err := s.nodePID(ctx)
	if err != nil {
		return 0, err
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if err != nil {
		return 0, err
	}
	found, err := processes(func(args []string, file string) bool {
		space, err := os.Readlink(filepath.Join(filepath.Dir(file), "ns/pid"))
		return err == nil && space == own && args[1] == name
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no %s runs on node %s", name, s.Node())
	}
	if err != nil {
		return 0, err
	}
	return found[0], nil
}

// processes finds processes by their arguments, two at least, and the file in /proc that has these.
func processes(is func(args []string, file string) bool) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(cmdline), "\x00")
		if len(args) < 2 || !is(args, file) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		found = append(found, pid)
	}
	slices.Sort(found)
	return found, nil
}

// hasEnvironment reports whether the process with this cmdline file began with a variable, as NAME=value.
func hasEnvironment(file, variable string) bool {
	environ, err := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+variable+"\x00"))
}

// FreezeProcess stops a process, as if it hung, until thaw is called.
func FreezeProcess(pid int) (thaw func() error, err error) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop %d: %w", pid, err)
	}
	return func() error {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("continue %d: %w", pid, err)
		}
		return nil
	}, nil
}

// KillProcess kills a process of a part, without warning.
func KillProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// KillPod kills the agent in a pod without warning, and the pod with it, as when its node died.
func (s *Side) KillPod(ctx context.Context, pod *corev1.Pod) error {
	pid, err := ProcessOf(pod, PartAgent)
	if err != nil {
		return err
	}
	return errors.Join(KillProcess(pid), s.deleteAtOnce(ctx, pod))
}

func (s *Side) deleteAtOnce(ctx context.Context, pod *corev1.Pod) error {
	return ctrlclient.IgnoreNotFound(s.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// KillAgent kills the agent without warning and replaces its pod, so that the
// kubelet's back-off delays nothing. It is for use in the middle of things: the
// pod need not be ready.
func (s *Side) KillAgent(ctx context.Context) error {
	pods, err := s.AgentPods(ctx)
	if err != nil {
		return err
	}
	killed := 0
	for i := range pods {
		pid, err := ProcessOf(&pods[i], PartAgent)
		if err != nil {
			continue
		}
		if err := KillProcess(pid); err != nil {
			return err
		}
		killed++
		if err := s.deleteAtOnce(ctx, &pods[i]); err != nil {
			return err
		}
	}
	if killed == 0 {
		return fmt.Errorf("no agent of %s runs", s.Name)
	}
	return nil
}

// field is the first word after a name at the beginning of a line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}
