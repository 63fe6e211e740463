package lab

import (
	"encoding/json"
	"fmt"
	"os"
)

// kubeconfig renders a kubeconfig with one context, as JSON (which is YAML),
// with everything inside, so that the file can be copied anywhere.
func kubeconfig(cluster, user string, c credentials) ([]byte, error) {
	b, err := json.MarshalIndent(m{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": cluster,
		"clusters": []m{{"name": cluster, "cluster": m{
			"server": c.Server, "certificate-authority-data": c.CA,
		}}},
		"users": []m{{"name": user, "user": m{
			"client-certificate-data": c.Cert, "client-key-data": c.Key,
		}}},
		"contexts": []m{{"name": cluster, "context": m{"cluster": cluster, "user": user}}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return append(b, '\n'), nil
}

// writeKubeconfig writes a kubeconfig for the user whose certificate is in pki
// under that name.
func writeKubeconfig(file, cluster, pki, user, server string) error {
	c, err := readCredentials(pki, user, server)
	if err != nil {
		return fmt.Errorf("read credentials of %s: %w", user, err)
	}
	b, err := kubeconfig(cluster, user, c)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
