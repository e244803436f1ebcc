"""Lake tables: Delta Lake and Iceberg through their Python libraries, without jars.

Their jars are built for earlier versions of Spark, and fail with this one. So tasks of Spark write
the Parquet files, and the driver adds all files of a batch to the table in one commit.

=================  =================================================================================
module             content
=================  =================================================================================
``lake_table``     the two formats behind one interface, and writing a batch exactly once
``lake_files``     writing Parquet files in tasks
``delta_table``    Delta Lake, by ``deltalake``
``iceberg_table``  Iceberg, by ``pyiceberg``
=================  =================================================================================
"""
