package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/internal/volumecopy"
)

// volumeCommand runs in the pods with which `entente move volume` copies a volume.
func volumeCommand(logs *logFlags) *cobra.Command {
	var cfg volumecopy.Config
	var secret string
	side := func(use, short string, run func(context.Context, volumecopy.Config) error) *cobra.Command {
		return daemon(use, short, func(ctx context.Context) error {
			log, err := logs.start()
			if err != nil {
				return err
			}
			if strings.Trim(cfg.ID, "0123456789abcdef-") != "" || cfg.ID == "" {
				return errors.New("--id has to be a UID")
			}
			if cfg.Secret, err = os.ReadFile(secret); err != nil {
				return fmt.Errorf("read the secret: %w", err)
			}
			cfg.Log = log.Info
			return run(ctx, cfg)
		})
	}
	send := side("send", "Send a volume, read-only, to a receiver", volumecopy.Send)
	receive := side("receive", "Receive from a sender, and write to a volume", volumecopy.Receive)
	for _, cmd := range []*cobra.Command{send, receive} {
		cmd.Flags().StringVar(&cfg.Volume, "volume", "/volume", "where the volume is mounted")
		cmd.Flags().StringVar(&cfg.ID, "id", "", "which copy this is, as a UID")
		cmd.Flags().StringVar(&secret, "secret-file", "/secret/key", "the file with the secret that both sides have")
		cmd.Flags().StringVar(&cfg.Address, "address", fmt.Sprintf(":%d", volumecopy.Port), "the address on which the receiver listens, or at which it is dialled")
	}
	var seal bool
	status := &cobra.Command{
		Use: "status", Short: "Print the progress of the sender or receiver of this pod", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			is, err := volumecopy.ReadStatus(cfg.State, seal)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(is)
		},
	}
	status.Flags().BoolVar(&seal, "seal", false, "first inform the sender that no other pod can use the volume any longer, or the receiver that both volumes were found equal")
	cmd := &cobra.Command{Use: "volume", Short: "Copy a volume to one in another cluster", Args: cobra.NoArgs}
	cmd.PersistentFlags().StringVar(&cfg.State, "state", "/state", "a directory for the status")
	cmd.AddCommand(send, receive, status)
	return cmd
}
