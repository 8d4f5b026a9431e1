int nvfs_stat(void);

int nvfs_stat(void)
{
	return 0;
}
