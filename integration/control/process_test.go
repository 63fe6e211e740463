package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
)

// process is the agent of a cluster as a process of this machine.
type process struct {
	name, binary, kubeconfig, log string
	// peerAddress, adminAddress, kubeletAddress, healthAddress and metricsAddress stay
	// the same over restarts.
	peerAddress, adminAddress, kubeletAddress, healthAddress, metricsAddress string
	// flags are more of the command line, from the next start on.
	flags []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

func newProcess(name, dir, binary string) (*process, error) {
	p := &process{name: name, binary: binary, kubeconfig: filepath.Join(dir, "agent.kubeconfig"), log: filepath.Join(dir, "agent.log")}
	if logs := os.Getenv("ENTENTE_CONTROL_LOGS"); logs != "" {
		if err := os.MkdirAll(logs, 0o755); err != nil {
			return p, err
		}
		p.log = filepath.Join(logs, filepath.Base(filepath.Dir(dir))+"-"+name+".log")
	}
	addresses, err := freeAddresses(5)
	if err != nil {
		return p, err
	}
	p.peerAddress, p.adminAddress, p.kubeletAddress, p.healthAddress, p.metricsAddress = addresses[0], addresses[1], addresses[2], addresses[3], addresses[4]
	return p, nil
}

// Ports of agents and of what plays one are below those that labs use. An agent
// listens again where it did, so none is given twice.
const firstPort, agentPorts = 11000, 5000

var givenPorts struct {
	sync.Mutex
	left []int
}

// freeAddresses finds unused loopback ports.
func freeAddresses(n int) ([]string, error) {
	givenPorts.Lock()
	defer givenPorts.Unlock()
	if givenPorts.left == nil {
		givenPorts.left = rand.Perm(agentPorts)
	}
	var out []string
	for len(out) < n {
		if len(givenPorts.left) == 0 {
			return nil, errors.New("no port is left")
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+givenPorts.left[0]))
		givenPorts.left = givenPorts.left[1:]
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		out = append(out, address)
	}
	return out, nil
}

// spawn starts the agent.
func (p *process) spawn() error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.binary, append([]string{
		"agent", "--log-format=text", "--log-level=debug",
		"--cluster-name=" + p.name, "--peer-endpoint=" + p.peerAddress, "--pod-cidr=10.200.0.0/16", "--service-cidr=10.96.0.0/16",
		"--peer-address=" + p.peerAddress, "--admin-address=" + p.adminAddress,
		"--kubelet-address=" + p.kubeletAddress, "--health-address=" + p.healthAddress, "--metrics-address=" + p.metricsAddress,
		// Their ports are fixed, and agents here share a host. No node brings anything.
		"--relay-address=", "--in-band-address=",
	}, p.flags...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "POD_NAME=entente-agent-"+p.name, "POD_UID="+p.name, "POD_NAMESPACE="+systemNamespace, "POD_IP=127.0.0.1")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = dieWithParent()
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The kernel ends a child with the thread that started it.
		runtime.LockOSThread()
		defer out.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the agent of %s: %w", p.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.done = cmd, done
	return nil
}

// running reports whether the agent lives.
func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the agent as a crash would: with SIGKILL.
func (p *process) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.cmd = nil
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	<-done
}

// ready asks the agent whether it leads and serves.
func (p *process) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.healthAddress+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return errors.New(string(b))
	}
	return nil
}

func (p *process) lastWords(lines int) string { return tail(p.log, lines) }
