package agent

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseLock returns the lock by which one agent leads, or nil for the library's own,
// in which each process has another identity. A process that follows another one in
// the same pod has the same identity: a container is started again only when its last
// process is dead, so it takes its own lease back at once instead of waiting for its
// end. An agent in any other pod waits.
func leaseLock(cfg Config) (resourcelock.Interface, error) {
	if cfg.PodUID == "" {
		return nil, nil //nolint:nilnil // none is an answer
	}
	limited := rest.CopyConfig(cfg.Kubernetes)
	limited.Timeout = renewDeadline / 2
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(limited, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("reach the API server for lease %s: %w", leaseName, err)
	}
	return lockOf(cfg, client), nil
}

func lockOf(cfg Config, client kubernetes.Interface) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: leaseName},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Pod + "_" + cfg.PodUID},
	}
}
