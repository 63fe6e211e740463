package lab

import (
	"encoding/json"
	"fmt"
	"os"
)

// kubeconfig renders a kubeconfig with one context, as JSON (which is YAML),
// with everything inside, so that the file can be copied anywhere.
func kubeconfig(cluster, user string, c credentials) ([]byte, error) {
	type object = map[string]any
	b, err := json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": cluster,
		"clusters": []object{{"name": cluster, "cluster": object{
			"server": c.Server, "certificate-authority-data": c.CA,
		}}},
		"users": []object{{"name": user, "user": object{
			"client-certificate-data": c.Cert, "client-key-data": c.Key,
		}}},
		"contexts": []object{{"name": cluster, "context": object{"cluster": cluster, "user": user}}},
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
