// Package podexec runs commands in pods.
package podexec

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/entente-dev/entente/internal/podstreams"
)

// In returns a function that runs commands in pods, as kubectl exec does.
func In(config *rest.Config, clients kubernetes.Interface) func(ctx context.Context, namespace, pod, container string, command ...string) ([]byte, error) {
	return func(ctx context.Context, namespace, pod, container string, command ...string) ([]byte, error) {
		url := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
		executor, err := podstreams.Executor(config, url)
		if err != nil {
			return nil, fmt.Errorf("exec in pod %s/%s: %w", namespace, pod, err)
		}
		var out, problem bytes.Buffer
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &bounded{&out}, Stderr: &bounded{&problem}})
		if err != nil {
			return nil, fmt.Errorf("exec in pod %s/%s: %w: %s", namespace, pod, err, strings.TrimSpace(problem.String()))
		}
		return out.Bytes(), nil
	}
}

// bounded is a writer that keeps the beginning of its input.
type bounded struct{ *bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxOutput - b.Len(); room > 0 {
		_, _ = b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
